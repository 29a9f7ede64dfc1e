-- The module "piper": every part is loaded when it is first asked for.
local core = require "piper.core"

local M = { _VERSION = core.version }

-- piper.<name> is what the module "piper.<name>" returns ...
local MODULES = {
  annotate = true, compile = true, data = true, lr = true, mesh = true, model = true, nn = true, pass = true,
  schedules = true, strategy = true, train = true,
}
-- ... or a field of another module.
local FIELDS = { adamw = "piper.optim", sgd = "piper.optim" }

local function names()
  local list = {}
  for _, known in ipairs { MODULES, FIELDS } do
    for name in pairs(known) do list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

return setmetatable(M, {
  __tostring = function() return require "piper.show".words("piper " .. core.version .. ":", names()) end,
  __index = function(t, name)
    local value
    if MODULES[name] then
      value = require("piper." .. name)
    elseif FIELDS[name] then
      value = require(FIELDS[name])[name]
    elseif not name:find "^_" then
      local check = require "piper.check"
      check.fail("piper: there is no %s%s", check.show(name), check.suggestion(name, names(), "there are"))
    end
    rawset(t, name, value)
    return value
  end,
})
