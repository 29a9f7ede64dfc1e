-- train - runs a plan, step after step.
local check = require "piper.check"
local core = require "piper.core"
local show = require "piper.show"

local M = {}

---@class piper.Metrics
---@field loss number              sum of the loss terms
---@field losses number[]          each term, in the order of the model's m:loss calls
---@field grad_norm number         of all gradients together, before clipping
---@field dropped integer          choices of experts (nn.moe) that were dropped, in the whole batch
---@field lr number
---@field seconds number           wall-clock time of the step
---@field tokens_per_second number elements of the first integer input (samples where there is none)

local function terms(losses)
  if #losses < 2 then return "" end
  local parts = {}
  for i, loss in ipairs(losses) do parts[i] = ("%.4g"):format(loss) end
  return " (" .. table.concat(parts, " + ") .. ")"
end

local metrics_of = show.form(function(m)
  return ("loss %.4g%s  grad_norm %.4g  lr %.4g  %.4g ms  %.0f tokens/s%s"):format(m.loss, terms(m.losses), m.grad_norm,
    m.lr, m.seconds * 1e3, m.tokens_per_second, m.dropped > 0 and ("  %d dropped"):format(m.dropped) or "")
end)

local evaluation_of = show.form(function(e)
  return ("loss %.4g%s over %s of %s%s"):format(e.loss, terms(e.losses), show.count(e.tokens, "token"),
    show.count(e.batches, "batch"):gsub("batchs", "batches"), e.dropped > 0 and (", %d dropped"):format(e.dropped) or "")
end)

-- The first values of a tensor that a run has.
local tensor_of = show.form(function(t)
  local shape, values = {}, {}
  for i, n in ipairs(t.shape) do shape[i] = n end
  for i = 1, math.min(#t, 8) do values[i] = ("%.4g"):format(t[i]) end
  return ("[%s] %s%s"):format(table.concat(shape, ", "), table.concat(values, " "), #t > 8 and " ..." or "")
end)

---@class piper.Run
local Run = {}
Run.__index = Run

-- Closes the core's run when its scope ends.
function M.guard(core_run)
  return setmetatable({ core = core_run }, { __close = function(self) self.core:close() end })
end

local function rate_of(lr, plan)
  if lr == nil then lr = plan.options.optimizer.lr end
  if type(lr) == "number" then return require "piper.lr".constant(lr) end
  if type(lr) ~= "function" and not require "piper.lr"._is_rate(lr) then
    check.fail("train: lr is %s, not a number, a piper.lr or a function of the step", check.show(lr))
  end
  return lr
end

-- Tokens that one step trains on.
local function tokens_per_step(plan)
  return plan.options.batch * plan.model.graph:tokens_per_sample()
end

---Raises where 'data' is no source of samples.
function M.check_data(where, data)
  if not check.is_core(data, "piper.Data") then
    check.fail("%s: %s; piper.data.text(...), .tokens(...) or .table {...} makes it", where,
      data == nil and 'field "data" is missing' or "data is " .. check.show(data, 1))
  end
end

---@param plan piper.Plan
---@param spec { data: piper.Data, seed?: integer, lr?: number|fun(step: integer): number }
---seed (default 0) of initial values and data order; lr overrides the optimizer's
---@return piper.Run
function M.train(plan, spec)
  if getmetatable(plan) ~= require "piper.compile".Plan then
    check.fail("train: argument 1 is %s, not a plan of piper.compile", check.show(plan))
  end
  check.options("train", spec, { data = "any?", seed = "integer?", lr = "any?" })
  M.check_data("train", spec.data)
  local lr = rate_of(spec.lr, plan)
  plan:verify()
  local self = { plan = plan, lr = lr, step = 0, tokens = tokens_per_step(plan), seed = spec.seed or 0, asking = false }
  self.core = core.run.open(plan.core, spec.data, self.seed, nil, true)
  return setmetatable(self, Run)
end

-- The learning rate of a step, from a function that may be the user's: it does not run that step itself.
local function ask_rate(self, step)
  if self.asking then check.fail("train: the learning rate function of step %d starts a step of its own run", step) end
  self.asking = true
  local _ <close> = setmetatable({}, { __close = function() self.asking = false end })
  local lr = self.lr(step)
  return lr
end

-- The next step.
local function advance(self)
  local step = self.step + 1
  local lr = ask_rate(self, step)
  if type(lr) ~= "number" or not (lr >= 0 and lr < math.huge) then
    check.fail("train: the learning rate of step %d is %s, not a number of at least 0", step, check.show(lr))
  end
  local start = core.system.seconds()
  local losses, norm, dropped = self.core:step(step, lr)
  local seconds = core.system.seconds() - start
  self.step = step
  local loss = 0
  for _, term in ipairs(losses) do loss = loss + term end
  return metrics_of {
    loss = loss, losses = show.list(losses), grad_norm = norm, dropped = dropped, lr = lr, seconds = seconds,
    tokens_per_second = self.tokens / math.max(seconds, 1e-9),
  }
end

---An iterator over the next n steps: for step, metrics in run:steps(200) do ... end.
---Steps are counted over the whole run, from 1.
---@param n integer
---@return fun(): integer?, piper.Metrics?
function Run:steps(n)
  check.value("steps", "argument 1", n, "integer>=0")
  local last = self.step + math.tointeger(math.min(n, math.maxinteger - self.step))
  local progress = require "piper.progress".new(self.step, last)
  return function()
    if self.step >= last then return nil end
    progress:working()
    local metrics = advance(self)
    progress:done(self.step, metrics)
    return self.step, metrics
  end, nil, nil, progress
end

---@class piper.Evaluation
---@field loss number      sum of the losses
---@field losses number[]  each, in the order of the model's m:loss calls: its mean over the batches, or, where
---it is (a multiple of) a cross_entropy that ignores targets, its mean over all targets that are present
---@field tokens integer   targets that such a loss counted; without one, tokens as in tokens_per_second
---@field batches integer
---@field dropped integer  choices of experts that were dropped

-- The losses of some batches as if they were one. 'job' is the core's run of the forward plan.
local function evaluate(job, batches, tokens)
  local sums, weights, counted, dropped = {}, {}, nil, 0
  local progress <close> = require "piper.progress".new(0, batches, "evaluate: batch")
  for batch = 1, batches do
    progress:working()
    local start = core.system.seconds()
    local losses, _, lost = job:step(batch, 0)
    local loss = 0
    for l, count in ipairs(job:counts()) do
      sums[l] = (sums[l] or 0) + losses[l] * (count or 1)
      weights[l] = (weights[l] or 0) + (count or 1)
      loss = loss + losses[l]
      if count then counted = counted or l end
    end
    dropped = dropped + lost
    progress:done(batch, { loss = loss, tokens_per_second = tokens / math.max(core.system.seconds() - start, 1e-9) })
  end
  local result = { loss = 0, losses = show.list {}, batches = batches, dropped = dropped }
  for l, sum in ipairs(sums) do
    result.losses[l] = weights[l] > 0 and sum / weights[l] or 0
    result.loss = result.loss + result.losses[l]
  end
  result.tokens = math.tointeger(counted and weights[counted] or batches * tokens)
  return evaluation_of(result)
end

---The losses on other data, with the parameters of the moment: the strategy's forward passes alone, without
---dropout. Training goes on afterwards as if nothing had been. It needs no memory of its own where what the
---plan needs only within a step is enough.
---@param spec { data: piper.Data, batches?: integer } batches: as many as the data has, at least one; samples
---are visited as in the run's first epoch
---@return piper.Evaluation
function Run:evaluate(spec)
  check.options("evaluate", spec, { data = "any?", batches = "integer>=1?" })
  M.check_data("evaluate", spec.data)
  local batches = spec.batches or math.max(1, spec.data:samples() // self.plan.options.batch)
  local forward = rawget(self, "forward") or require "piper.compile".evaluation(self.plan)
  rawset(self, "forward", forward) -- compiled once
  local job <close> = M.guard(core.run.open(forward, spec.data, self.seed, self.core))
  return evaluate(job.core, batches, self.tokens)
end

---The whole parameter, wherever its parts are: { shape = { ... }, flat values }.
---@param name string
---@return { shape: integer[], [integer]: number }
function Run:params(name)
  return tensor_of(self.core:param(check.value("params", "argument 1 (name)", name, "string")))
end

---The parameter's gradient in the last step, before the optimizer; zeros where it has none.
---@param name string
---@return { shape: integer[], [integer]: number }
function Run:gradients(name)
  check.value("gradients", "argument 1 (name)", name, "string")
  if self.step == 0 then check.fail "gradients: no step has run yet" end
  return tensor_of(self.core:grad(name))
end

---@param name string
---@param values number[] flat, as run:params gives them
function Run:set_params(name, values)
  check.value("set_params", "argument 1 (name)", name, "string")
  check.value("set_params", "argument 2 (values)", values, "table")
  self.core:set(name, values)
end

---Bytes for each rank as allocated, in the form of plan:memory().
function Run:memory() return show.memory(self.core:memory()) end

---Raises unless every rank that holds a parameter holds the same bits of it.
function Run:check_replicas() self.core:check_replicas() end

---Ends the run and frees its memory.
function Run:close() self.core:close() end
Run.__close = Run.close

function Run:__tostring() return ("run: %d steps done"):format(self.step) end

check.seal(Run, "run")

return setmetatable(M, { __call = function(_, ...) return (M.train(...)) end })
