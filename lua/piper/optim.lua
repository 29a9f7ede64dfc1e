-- optim - optimizers, as options of piper.compile.
local check = require "piper.check"
local show = require "piper.show"

local M = {}

local optimizer = show.form(function(o)
  if o.kind == "sgd" then
    return ("sgd { lr = %s, momentum = %s, weight_decay = %s }"):format(o.lr, o.momentum, o.weight_decay)
  end
  return ("adamw { lr = %s, betas = { %s, %s }, eps = %s, weight_decay = %s }"):format(o.lr, o.beta1, o.beta2, o.eps,
    o.weight_decay)
end)

---@class piper.Optimizer
---@field kind "sgd"|"adamw"
---@field lr number learning rate, used where piper.train is given none

---Stochastic gradient descent: w -= lr * m, m = momentum * m + gradient + weight_decay * w.
---weight_decay spares parameters with fewer than two dimensions.
---@param spec { lr: number, momentum?: number, weight_decay?: number } momentum in [0, 1) (default 0),
---weight_decay >= 0 (default 0)
---@return piper.Optimizer
function M.sgd(spec)
  check.options("sgd", spec, { lr = "number>=0", momentum = "number>=0?", weight_decay = "number>=0?" })
  if (spec.momentum or 0) >= 1 then check.fail("sgd: momentum is %s, not below 1", spec.momentum) end
  return optimizer { kind = "sgd", lr = spec.lr, momentum = spec.momentum or 0, weight_decay = spec.weight_decay or 0 }
end

---AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019). weight_decay spares
---parameters with fewer than two dimensions.
---@param spec { lr: number, betas?: number[], eps?: number, weight_decay?: number } betas in [0, 1)
---(default { 0.9, 0.999 }), eps > 0 (default 1e-8), weight_decay >= 0 (default 0.01)
---@return piper.Optimizer
function M.adamw(spec)
  check.options("adamw", spec, { lr = "number>=0", betas = "list?", eps = "number>0?", weight_decay = "number>=0?" })
  local betas = spec.betas or { 0.9, 0.999 }
  if #betas ~= 2 then check.fail("adamw: betas has %d elements: it is { beta1, beta2 }", #betas) end
  for i, beta in ipairs(betas) do
    check.value("adamw", ("element %d of betas"):format(i), beta, "number>=0")
    if beta >= 1 then check.fail("adamw: element %d of betas is %s, not below 1", i, beta) end
  end
  return optimizer {
    kind = "adamw", lr = spec.lr, beta1 = betas[1], beta2 = betas[2], eps = spec.eps or 1e-8,
    weight_decay = spec.weight_decay or 0.01,
  }
end

---A copy of an optimizer, whose fields a script may have changed.
---@param where string
---@param o any
---@return piper.Optimizer
function M.copy(where, o)
  if o.kind == "sgd" then return M.sgd { lr = o.lr, momentum = o.momentum, weight_decay = o.weight_decay } end
  if o.kind == "adamw" then
    return M.adamw { lr = o.lr, betas = { o.beta1, o.beta2 }, eps = o.eps, weight_decay = o.weight_decay }
  end
  check.fail('%s: field "optimizer" is %s: piper.sgd{...} or piper.adamw{...} make one', where, check.show(o))
end

return M
