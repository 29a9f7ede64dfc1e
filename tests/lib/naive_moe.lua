-- naive_moe - a small model with one mixture of experts, and its loss written down once more, from the
-- definition, with plain loops over numbers: y = mse(out(x + moe(in(x)))), plus the balance loss.
local piper = require "piper"
local nn = piper.nn

local M = {}

---@class piper.test.MoeCase
---@field tokens integer, of a sample
---@field width integer
---@field experts integer
---@field top_k integer
---@field hidden integer
---@field capacity_factor? number
---@field normalize? boolean
---@field aux? number
---@field flat? boolean the input is { { "batch", tokens }, width }
---@field ties? boolean the router is 0, so all experts are equal

---@param c piper.test.MoeCase
function M.model(c)
  return piper.model("moe", function(m)
    local shape = c.flat and { { "batch", c.tokens }, c.width } or { "batch", c.tokens, c.width }
    local x, y = m:input("x", shape), m:input("y", shape)
    local h = nn.linear(x, "in", { out = c.width, bias = false, init = { normal = 0.7 } })
    h = h + nn.moe(h, "moe", {
      experts = c.experts, top_k = c.top_k, width = c.hidden, capacity_factor = c.capacity_factor,
      normalize = c.normalize, aux = c.aux,
      init = c.ties and function(i, name) return name:find "gate.weight" and 0 or math.sin(i + #name) end or { normal = 0.9 },
    })
    m:loss(nn.mse(h, y))
  end)
end

-- W x for a flat W [rows, #x]
local function times(w, x, rows)
  local y = {}
  for o = 1, rows do
    local sum = 0.0
    for i = 1, #x do sum = sum + w[(o - 1) * #x + i] * x[i] end
    y[o] = sum
  end
  return y
end

local function softmax(v)
  local e, sum = {}, 0.0
  for i = 1, #v do e[i] = math.exp(v[i]); sum = sum + e[i] end
  for i = 1, #v do e[i] = e[i] / sum end
  return e
end

-- Experts of a token, best first; the lower one of equal ones.
local function choose(p, k)
  local order = {}
  for e = 1, #p do order[e] = e end
  table.sort(order, function(a, b) return p[a] > p[b] or (p[a] == p[b] and a < b) end)
  return table.move(order, 1, k, 1, {})
end

local function expert(w, e, x, hidden)
  local name = ("moe.experts.%d."):format(e - 1)
  local gate, up = times(w[name .. "gate_proj.weight"], x, hidden), times(w[name .. "up_proj.weight"], x, hidden)
  for i = 1, hidden do gate[i] = gate[i] / (1 + math.exp(-gate[i])) * up[i] end
  return times(w[name .. "down_proj.weight"], gate, #x)
end

-- One sample: squared error over all its elements, balance loss, dropped choices. 'routing', if given,
-- is the list of chosen experts a token instead of the best ones; it is returned.
local function sample(c, w, x, y, routing)
  local error_sum, dropped = 0.0, 0
  local count, chosen_of, mean = {}, {}, {}
  for e = 1, c.experts do count[e], chosen_of[e], mean[e] = 0, 0, 0.0 end
  local capacity = math.huge
  if c.capacity_factor then capacity = math.ceil(c.capacity_factor * c.top_k * c.tokens / c.experts) end
  local chosen_list = {}
  for t = 1, c.tokens do
    local row = {}
    for i = 1, c.width do row[i] = x[(t - 1) * c.width + i] end
    local h = times(w["in.weight"], row, c.width)
    local p = softmax(times(w["moe.gate.weight"], h, c.experts))
    local chosen = routing and routing[t] or choose(p, c.top_k)
    chosen_list[t] = chosen
    local total = 0.0
    for _, e in ipairs(chosen) do total = total + p[e] end
    local out = table.move(h, 1, #h, 1, {})
    for _, e in ipairs(chosen) do
      chosen_of[e] = chosen_of[e] + 1
      if count[e] < capacity then
        count[e] = count[e] + 1
        local o, f = expert(w, e, h, c.hidden), c.normalize == false and p[e] or p[e] / total
        for i = 1, c.width do out[i] = out[i] + f * o[i] end
      else
        dropped = dropped + 1
      end
    end
    for e = 1, c.experts do mean[e] = mean[e] + p[e] / c.tokens end
    for i = 1, c.width do error_sum = error_sum + (out[i] - y[(t - 1) * c.width + i]) ^ 2 end
  end
  local balance = 0.0
  for e = 1, c.experts do
    balance = balance + chosen_of[e] / (c.top_k * c.tokens) * mean[e]
  end
  return error_sum, c.experts * balance, dropped, chosen_list
end

-- Losses { balance, mse } ({ mse } without aux), dropped choices and routing of a whole batch.
function M.losses(c, w, xs, ys, routing)
  local error_sum, balance, dropped, routes = 0.0, 0.0, 0, {}
  for s = 1, #xs do
    local e, b, d, r = sample(c, w, xs[s], ys[s], routing and routing[s])
    error_sum, balance, dropped, routes[s] = error_sum + e, balance + b, dropped + d, r
  end
  local mse = error_sum / (#xs * c.tokens * c.width)
  local losses = (c.aux or 0) > 0 and { c.aux * balance / #xs, mse } or { mse }
  return losses, dropped, routes
end

-- Numbers around 0 that look like noise; the same on every machine.
function M.noise(n, salt)
  local out = {}
  for i = 1, n do out[i] = ((i * 7919 + salt * 104729) % 1009) / 504 - 1 end
  return out
end

return M
