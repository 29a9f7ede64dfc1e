-- trace - which model is being traced. There is one at a time: piper.model runs its function once,
-- and whatever that function calls adds to this model.
local check = require "piper.check"

local M = {}

local current ---@type piper.Model?

---@param where string the function that needs a model
---@return piper.Model
function M.current(where)
  return current or check.fail("%s: outside a model: it belongs in the function given to piper.model", where)
end

---Begins the tracing of a model; it ends when what is returned is closed.
---@param model piper.Model
function M.begin(model)
  if current then check.fail('model: "%s" is inside the function of model "%s"', model.name, current.name) end
  current = model
  return setmetatable({}, { __close = function() current = nil end })
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
