-- tap.lua - points of a Lua test in TAP. Every check takes a name last and returns whether it held.
--
--   local tap = require "tap"
--   tap.is(1 + 2, 3, "1 and 2 make 3")
--   tap.done()
local tap = {}

local run, failed = 0, 0

local function where()
  local level = 3
  while true do
    local info = debug.getinfo(level, "Sl")
    if not info then return "?" end
    if info.currentline > 0 and not info.source:find("tap.lua", 1, true) then
      return info.short_src .. ":" .. info.currentline
    end
    level = level + 1
  end
end

local function show(v)
  if type(v) == "string" then return (("%q"):format(v):gsub("\\\n", "\\n")) end
  return math.type(v) == "float" and ("%.17g"):format(v) or tostring(v)
end

function tap.diag(text)
  io.write("# ", (tostring(text):gsub("\n", "\n# ")), "\n")
  io.flush()
end

local function point(held, name, why)
  run = run + 1
  if not held then failed = failed + 1 end
  io.write(held and "" or "not ", "ok ", run, " - ", (tostring(name):gsub("\n", " "):gsub("#", "\\#")), "\n")
  if not held then tap.diag("at " .. where() .. (why and ": " .. why or "")) end
  io.flush()
  return held
end

function tap.ok(held, name) return point(not not held, name) end

function tap.is(got, want, name)
  local held = got == want
  return point(held, name, not held and ("got %s, want %s"):format(show(got), show(want)))
end

-- |got - want| <= tol (default 1e-9)
function tap.near(got, want, tol, name)
  if name == nil then tol, name = 1e-9, tol end
  local held = type(got) == "number" and math.abs(got - want) <= tol
  return point(held, name, not held and ("got %s, want %s within %g"):format(show(got), show(want), tol))
end

-- 'got' contains the Lua pattern
function tap.like(got, pattern, name)
  local held = type(got) == "string" and got:find(pattern) ~= nil
  return point(held, name, not held and ("got %s, want a match of %s"):format(show(got), show(pattern)))
end

-- 'fn' raises an error whose text matches the Lua pattern; the default name is the pattern
function tap.error_matches(fn, pattern, name)
  local fine, err = pcall(fn)
  local held = not fine and tostring(err):find(pattern) ~= nil
  return point(held, name or ("error: " .. pattern), not held
    and (fine and "no error, want " .. show(pattern) or ("got %s, want a match of %s"):format(show(err), show(pattern))))
end

function tap.skip(why, name)
  run = run + 1
  io.write("ok ", run, name and " - " .. name or "", " # SKIP ", why, "\n")
end

function tap.skip_all(why)
  io.write("1..0 # SKIP ", why, "\n")
  os.exit(0, true)
end

-- The plan, at the end; a test that dies before it fails.
function tap.done()
  io.write("1..", run, "\n")
  if failed > 0 then os.exit(1, true) end
end

return tap
