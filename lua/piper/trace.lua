-- trace - which model is being traced. There is one at a time: piper.model runs its function once,
-- and whatever that function calls adds to this model.
local check = require "piper.check"

local M = {}

local current ---@type piper.Model?
-- The coroutine that runs its function. One that yielded inside, or that is gone, does not come back:
-- its model is given up when the next one begins.
local owner = setmetatable({}, { __mode = "v" })

---@param where string the function that needs a model
---@return piper.Model
function M.current(where)
  return current or check.fail("%s: outside a model: it belongs in the function given to piper.model", where)
end

---Begins the tracing of a model; it ends when what is returned is closed.
---@param model piper.Model
function M.begin(model)
  local status = current and owner.thread and coroutine.status(owner.thread)
  if status == "running" or status == "normal" then
    check.fail('model: "%s" is inside the function of model "%s"', model.name, current.name)
  end
  current, owner.thread = model, coroutine.running()
  return setmetatable({}, { __close = function()
    if current == model then current = nil end
  end })
end

---@param model piper.Model
---@return boolean
function M.is_current(model)
  return model == current
end

-- Names end up in messages, patterns and files.
---@param where string
---@param what string
---@param name any
---@return string name
function M.name(where, what, name)
  check.value(where, what, name, "string")
  if name == "" or #name > 128 or name:find "[%c%s\"']" then
    check.fail("%s: %s is %s; it has 1 to 128 characters, no blanks and no quotes", where, what, check.show(name))
  end
  return name
end

return M
