-- annotate - named scopes of ops, which the directives of a strategy refer to.
local check = require "piper.check"
local trace = require "piper.trace"

local Scope = {}

-- Also when an error passes through: a script that catches it inside the model function goes on
-- outside the scope. Once the model is no longer traced there is nothing to leave.
function Scope:__close()
  if trace.is_current(self.model) then self.model.graph:leave(self.tag) end
end

local function open(tag)
  local model = trace.current "annotate"
  check.value("annotate", "argument 1 (tag)", tag, "string")
  if not tag:find "^[%a_][%w_]*$" then
    check.fail("annotate: tag is %s; it is a word of letters, digits and _", check.show(tag))
  end
  if tag == "PASS" then
    check.fail('annotate: "PASS" cannot be a tag: in filters it says which pass')
  end
  model.graph:enter(check.here(), tag)
  return setmetatable({ model = model, tag = tag }, Scope)
end

---Ops traced inside get the tag's next index: 0 for its first scope, then 1, and so on. Scopes of
---different tags nest; a tag inside itself is an error.
---
---    piper.annotate("PP", function() h = nn.relu(h) end)
---    do
---      local _ <close> = piper.annotate("PP")     -- until the end of the block
---      h = nn.relu(h)
---    end
---@generic T
---@param tag string a word such as "PP"
---@param fn? fun(): T
---@return T ... what fn returns, or without fn a value to be closed
local function annotate(tag, ...)
  if select("#", ...) == 0 then return open(tag) end
  local fn = ...
  if type(fn) ~= "function" then check.fail("annotate: argument 2 is %s, not a function", check.show(fn)) end
  local _ <close> = open(tag)
  return fn()
end

return annotate
