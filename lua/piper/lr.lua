-- lr - learning rates that change from step to step: called with the step, counted from 1, they give its rate.
local check = require "piper.check"

local M = {}

---A learning rate of this module: called like a function, printed as what made it.
---@class piper.Rate
---@overload fun(step: integer): number
local Rate = {}
function Rate:__call(step) return self.rate(step) end
function Rate:__tostring() return self.text end

local function rate_of(text, rate) return setmetatable({ text = text, rate = rate }, Rate) end

---@return boolean
function M._is_rate(v) return getmetatable(v) == Rate end

---The same rate in every step.
---@param rate number
---@return piper.Rate
function M.constant(rate)
  check.value("lr.constant", "argument 1", rate, "number>=0")
  return rate_of(("lr.constant(%s)"):format(rate), function() return rate end)
end

-- Rises in a straight line to 'peak' at step 'warmup'; from there 'decay' of how far (0 to 1) the
-- step is on the way to 'total'.
local function warmed(where, spec, declared, decay)
  check.options(where, spec, declared)
  local peak, warmup, total = spec.peak, spec.warmup or 0, spec.total
  if warmup >= total then check.fail("%s: warmup is %d steps, not less than total, %d", where, warmup, total) end
  if (spec.floor or 0) > peak then check.fail("%s: floor %s is above peak %s", where, spec.floor, peak) end
  local floor = spec.floor and (", floor = %s"):format(spec.floor) or ""
  return rate_of(("%s { peak = %s, warmup = %d, total = %d%s }"):format(where, peak, warmup, total, floor), function(step)
    if step < warmup then return peak * step / warmup end
    return decay(math.min(1, (step - warmup) / (total - warmup)))
  end)
end

---Up to peak over warmup steps, then down to 0 at step total.
---@param spec { peak: number, warmup?: integer, total: integer }
---@return piper.Rate
function M.linear(spec)
  return warmed("lr.linear", spec, { peak = "number>=0", warmup = "integer>=0?", total = "integer>=1" },
    function(t) return spec.peak * (1 - t) end)
end

---Up to peak over warmup steps, then half a cosine down to floor (default 0) at step total.
---@param spec { peak: number, warmup?: integer, total: integer, floor?: number }
---@return piper.Rate
function M.cosine(spec)
  return warmed("lr.cosine", spec,
    { peak = "number>=0", warmup = "integer>=0?", total = "integer>=1", floor = "number>=0?" },
    function(t)
      local floor = spec.floor or 0
      return floor + (spec.peak - floor) * (1 + math.cos(math.pi * t)) / 2
    end)
end

return check.strict(M, "lr")
