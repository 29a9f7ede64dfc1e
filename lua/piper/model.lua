-- model - a model as a script writes it: a function that is traced once.
local check = require "piper.check"
local core = require "piper.core"
local params = require "piper.params"
local show = require "piper.show"
local tensor = require "piper.tensor"
local trace = require "piper.trace"

---@class piper.Model
---@field name string
---@field losses piper.Tensor[]  in the order of the calls of m:loss; what is minimised is their sum
---@field graph userdata  the core's op graph; complete once the model function has returned
---@field package _init piper.Init?  of all parameters whose call says nothing else
---@field package _inits table<string, { init: piper.Init, line: string }>  by full name
---@field package _prefix string  of names in the scopes that are open: "layers.0."
---@field package _frozen { pattern: string, line: string }[]
local Model = {}
Model.__index = Model

local function tracing(model, where)
  if not trace.is_current(model) then
    check.fail('%s: model "%s" is complete; this belongs in its function', where, model.name)
  end
end

local DTYPES = { "f32", "f64", "i32", "float" }

---Data that each sample of the batch brings.
---@param name string what the data source calls it
---@param shape piper.Shape begins with "batch", or { "batch", k } for k rows a sample
---@param dtype? "i32"|"f32"|"f64" default "f32"; "f32" and "f64" both mean the type that the plan
---computes in (piper.compile's dtype)
---@return piper.Tensor
function Model:input(name, shape, dtype)
  tracing(self, "input")
  trace.name("input", "argument 1 (name)", name)
  local where = ('input "%s"'):format(name)
  dtype = check.choice(where, "argument 3 (dtype)", dtype or "f32", DTYPES)
  return tensor.new(self, self.graph:add_input(check.here(), name, shape, dtype == "i32"))
end

---Adds a term to what is minimised. A term that does not depend on the batch counts once.
---@param x piper.Tensor float scalar
function Model:loss(x)
  tracing(self, "loss")
  self.graph:add_loss(check.here(), tensor.id("loss", "value", x))
  self.losses[#self.losses + 1] = x
end

---Parameters whose names match are not trained, wherever in the function they are made.
---@param pattern string a Lua pattern, as in string.find: "^embed%."
function Model:freeze(pattern)
  tracing(self, "freeze")
  check.value("freeze", "argument 1 (pattern)", pattern, "string")
  local fine, message = pcall(string.find, "", pattern)
  if not fine then check.fail("freeze: %s in %s", message, check.show(pattern)) end
  self._frozen[#self._frozen + 1] = { pattern = pattern, line = check.here() }
end

local function names_of(list)
  local names = {}
  for i, p in ipairs(list) do names[i] = p.name end
  if #names > 8 then names = { table.concat(names, ", ", 1, 8), "..." } end
  return #names > 0 and table.concat(names, ", ") or "none"
end

-- The call's own line is past by now; a message that begins with it is not blamed on another.
local function apply_freeze(model, f)
  local list, found = model.graph:params(), false
  for i, p in ipairs(list) do
    local fine, at = pcall(string.find, p.name, f.pattern)
    if not fine then check.fail("%s: freeze: %s in %s", f.line, at, check.show(f.pattern)) end
    if at then
      model.graph:freeze(i)
      found = true
    end
  end
  if not found then
    check.fail("%s: freeze: pattern %s matches no parameter (%s)", f.line, check.show(f.pattern), names_of(list))
  end
end

---@class piper.Param
---@field name string full name
---@field shape integer[]
---@field elements integer
---@field frozen boolean  by m:freeze
---@field trained boolean  a gradient reaches it
---@field init "constant"|"normal"|"uniform"|"function"
---@field init_arg? number  the constant, deviation or half width
---@field line string  "file:line" where it was made

local param_of = show.form(function(p)
  return ("%s [%s]%s"):format(p.name, table.concat(p.shape, ", "), p.frozen and " frozen" or "")
end)
local params_of = show.form(function(list)
  local lines = {}
  for i, p in ipairs(list) do lines[i] = tostring(p) end
  return table.concat(lines, "\n")
end)

---@return piper.Param[] in the order in which they were made
function Model:params()
  local list = self.graph:params()
  for _, p in ipairs(list) do
    show.list(p.shape)
    param_of(p)
  end
  return params_of(list)
end

---Floating-point operations of one step, a multiply-add counting as two.
---@param batch integer samples
---@return number total forward and backward
---@return number forward
---@return number backward
function Model:flops(batch)
  check.value("flops", "argument 1 (batch)", batch, "integer>=1")
  local forward, backward = self.graph:flops(math.tointeger(batch))
  local function whole(x) return math.tointeger(x) or x end
  return whole(forward + backward), whole(forward), whole(backward)
end

---Inputs, losses, chunks with their ops, and parameters, as a table.
function Model:__tostring()
  return require "piper.model_text" (self)
end

check.seal(Model, "model")

---Runs fn once, with symbolic tensors, and returns the model it describes.
---@param name string
---@param fn fun(m: piper.Model)
---@param options? { init?: piper.Init } initial values of all parameters whose calls say nothing else
---@return piper.Model
local function model(name, fn, options)
  trace.name("model", "argument 1 (name)", name)
  local where = ('model "%s"'):format(name)
  check.value(where, "argument 2", fn, "function")
  options = check.options(where, options or {}, { init = "any?" })
  params.check_init(where, options.init)
  local self = setmetatable({
    name = name, graph = core.graph.new(name), losses = {},
    _init = options.init, _inits = {}, _prefix = "", _frozen = {},
  }, Model)
  local _ <close> = trace.begin(self)
  fn(self)
  for _, f in ipairs(self._frozen) do apply_freeze(self, f) end
  self.graph:cut()
  return self
end

return model
