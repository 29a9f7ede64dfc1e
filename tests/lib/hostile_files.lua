-- hostile_files - what holds of the readers of strategy files whatever bytes they get: an error that
-- begins with the caller's line and names function and file, or a strategy that is the same when it is
-- written and read again. For tests/fuzz/strategy_file.c and tests/lua/damaged_files.lua.
local files = require "piper.files"
local strategy = require "piper.strategy"

local M = {}

local PATH = "hostile.file"
local content, written
files.read = function(_, _) return content end
files.write = function(_, _, text) written = text end

-- The text that 'save' writes of what 'load' reads; nil and the message where it is refused.
local function through(load, save, text)
  content, written = text, nil
  local fine, s = pcall(function() return (load(PATH)) end)
  if not fine then return nil, s end
  local saved, why = pcall(function() save(s, PATH) end)
  if not saved then return nil, why end
  return written
end

local KINDS = {
  json = { strategy.load, strategy.Strategy.save, "load", "save" },
  csv = { strategy.load_csv, strategy.Strategy.save_csv, "load_csv", "save_csv" },
}

local function refusal(why, read, write)
  local rest = type(why) == "string" and why:match "^[^:]*hostile_files.lua:%d+: (.*)$"
  if not rest or rest:find "%c" then return false end
  if rest:sub(1, #read + 2 + #PATH) == read .. ": " .. PATH then return true end
  return rest:sub(1, #write + 2) == write .. ": "
end

---@param kind "json"|"csv"
---@param text string
---@return boolean? accepted  raises where the property does not hold
function M.check(kind, text)
  local load, save, read, write = table.unpack(KINDS[kind])
  local once, why = through(load, save, text)
  if not once then
    if not refusal(why, read, write) then error(("%s: this is no message: %s"):format(kind, why), 0) end
    return false
  end
  local twice, problem = through(load, save, once)
  if twice ~= once then error(("%s: written and read again it is %s, not %s"):format(kind, problem or twice, once), 0) end
  return true
end

return M
