-- equivalence - does a plan train to the same weights as one device? (design 5.8)
local check = require "piper.check"
local core = require "piper.core"

local DECLARED = {
  steps = "integer>=1?", seed = "integer?", dtype = "string?", data = "any?", check = "boolean?",
}

local Result = {}

function Result:__tostring()
  return ("largest relative differences: loss %.2g, gradients %.2g, parameters %.2g%s"):format(self.loss, self.grad,
    self.param, self.worst and (", farthest in " .. self.worst) or "")
end

-- Runs plan and reference in step and keeps the largest relative errors seen. The gradient norm counts
-- as a gradient.
local function compare(run, reference, steps, lr, compared)
  local worst = { loss = 0, grad = 0, param = 0 }
  for step = 1, steps do
    local losses, norm = run:step(step, lr)
    local expected, expected_norm = reference:step(step, lr)
    for i, loss in ipairs(losses) do
      local off = loss == expected[i] and 0 or math.abs(loss - expected[i]) / math.max(math.abs(expected[i]), 1e-300)
      if not (off <= worst.loss) then worst.loss = off end
    end
    for _, what in ipairs(compared) do
      local off, param = core.run.compare(run, reference, what .. "s")
      if off > worst[what] then
        worst[what] = off
        if off >= math.max(worst.grad, worst.param) then worst.worst = param end
      end
    end
    local off = norm == expected_norm and 0 or math.abs(norm - expected_norm) / math.max(expected_norm, 1e-300)
    if not (off <= worst.grad) then worst.grad, worst.worst = off, "the global norm" end
  end
  return worst
end

---Runs the plan and a plan of the same model without directives on the same data from the same
---seed, and compares losses, gradients before the optimizer and parameters after each step.
---@param plan piper.Plan
---@param spec { steps?: integer, seed?: integer, dtype?: "f32"|"f64", data?: piper.Data, check?: boolean }
---steps (default 3); dtype (default "f64"; "f32" compares AdamW by loss and gradients of step 1,
---since it turns rounding noise into full steps); data (default uniform noise)
---@return { loss: number, grad: number, param: number, worst: string? } largest relative errors, and
---the parameter that is farthest off
return function(plan, spec)
  local where = "check_equivalence"
  check.options(where, spec, DECLARED)
  local compile = require "piper.compile"
  local dtype = check.choice(where, 'field "dtype"', spec.dtype or "f64", { "f32", "f64" })
  local options = setmetatable({ dtype = dtype }, { __index = plan.options })
  if spec.data ~= nil then require "piper.train".check_data(where, spec.data) end
  local data = spec.data or core.data.random()
  local seed = spec.seed or 1
  local run <close> = require "piper.train".guard(core.run.open(compile.build(plan.model, plan.strategy, options, plan.passes), data, seed))
  local nothing = require "piper.strategy".new()
  local reference <close> = require "piper.train".guard(core.run.open(compile.build(plan.model, nothing, options), data, seed))

  local optimizer = options.optimizer
  local first_only = dtype == "f32" and optimizer.kind == "adamw"
  local result = compare(run.core, reference.core, first_only and 1 or spec.steps or 3, optimizer.lr,
    first_only and { "grad" } or { "grad", "param" })
  run.core:check_replicas()
  local limit = dtype == "f64" and 1e-9 or 1e-5
  if spec.check ~= false then
    for _, what in ipairs { "loss", "grad", "param" } do
      if not (result[what] <= limit) then
        check.fail("%s: the plan differs from one device: %s by %.3g (limit %.0g)%s", where, what, result[what], limit,
          result.worst and (", farthest in " .. result.worst) or "")
      end
    end
  end
  return setmetatable(result, Result)
end
