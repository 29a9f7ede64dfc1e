-- The README's script is samples/first.lua, and the output that it shows is what that prints, but for speed and
-- what follows from the number of cores.
local tap = require "tap"

local function read(path)
  local f <close> = assert(io.open(os.getenv "srcdir" .. "/" .. path))
  return f:read "a"
end
local page, sample = read "README.md", read "samples/first.lua"
local script, shown = page:match "\n```lua\n(.-\n)```\n\nprints[^\n]*\n\n```\n(.-)```\n"
tap.is(script, sample, "the script is the sample")

local printed = {}
local env = setmetatable({ arg = {}, print = function(...)
  for line in (tostring((...)) .. "\n"):gmatch "([^\n]*)\n" do printed[#printed + 1] = line end
end }, { __index = _G })
assert(load(sample:gsub("run:steps%(300%)", "run:steps(1)"), "@first.lua", "t", env))()

if table.concat(printed, "\n"):find "threads each" then
  tap.skip("this machine gives each rank several threads", "the output")
else
  local at, missing = 1, nil
  for line in shown:gmatch "[^\n]+" do
    local start = at
    if line ~= "..." and not line:find "^step " then
      while at <= #printed and printed[at] ~= line do at = at + 1 end
      if at > #printed then
        missing, at = missing or line, start
      end
    end
  end
  tap.is(missing, nil, "each line is printed, in this order")
end
tap.done()
