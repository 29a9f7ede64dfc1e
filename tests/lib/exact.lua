-- exact - models whose arithmetic has no rounding: linear layers, ReLU, sums of squares, small
-- integers. Whatever order a strategy adds in, the bits have to be those of one device.
local piper = require "piper"
local nn = piper.nn

local M = {}

local WIDTH = 4

-- Small whole numbers that differ from place to place; 'salt' makes tensors differ.
local function whole(salt, span)
  return function(i) return (i * 7 + salt * 5 + (i // 3) * salt) % (2 * span + 1) - span end
end

local function layer(h, name, salt)
  return nn.linear(h, name, { out = WIDTH, init = whole(salt, 1) })
end

local function block(h, stage, index)
  index = index or 0
  return nn.relu(layer(h, ("layer%d.%d"):format(stage, index), stage * 3 + index + 1))
end

-- What stage s of n computes from h, the output of the one before; 'kept' is theirs to share.
local STAGE = {}

function STAGE.plain(s, _, h) return block(h, s) end

function STAGE.skip(s, n, h, kept) -- the first stage's output goes to the last one as well
  h = block(h, s)
  kept.first = kept.first or h
  return s == n - 1 and layer(h + kept.first, "last", 5) or h
end

function STAGE.shared(s, n, h, kept) -- what the second stage makes is read by all after it
  h = block(kept.second and h + kept.second or h, s)
  if s == math.min(1, n - 1) then kept.second = h end
  return h
end

function STAGE.nested(s, n, h, kept) -- the output of stage s goes to stage n - 1 - s as well
  h = block(kept[n - 1 - s] and h + kept[n - 1 - s] or h, s)
  kept[s] = h
  return h
end

function STAGE.uneven(s, _, h)
  for l = 0, s == 0 and 2 or s % 2 do h = block(h, s, l) end
  return h
end

function STAGE.no_parameters(s, _, h) return s == 1 and nn.relu(h) * 2 or block(h, s) end

function STAGE.loss_stage(s, n, h) return (s == n - 1 and n > 1) and h or block(h, s) end

function STAGE.frozen_first(s, _, h) return block(h, s) end
function STAGE.frozen_middle(s, _, h) return block(h, s) end

function STAGE.reshape(s, _, h) -- views at the borders of stages
  h = h:reshape { { "batch", 2 }, 2 }
  return nn.relu(nn.linear(h, "layer" .. s, { out = 2, init = whole(s + 1, 1) })):reshape { "batch", WIDTH }
end

function STAGE.tied(s, n, h) -- embedding and head are one parameter
  if s == 0 then h = nn.embedding(h, "embed", { vocab = 5, width = WIDTH, init = whole(9, 2) }) end
  h = block(h, s)
  return s == n - 1 and nn.linear(h, "embed", { out = 5, bias = false }) or h
end

M.kinds = { "plain", "skip", "shared", "nested", "uneven", "no_parameters", "loss_stage", "frozen_first",
  "frozen_middle", "reshape", "tied" }

---@param kind string one of M.kinds
---@param n integer stages, PP = 0 .. n-1
function M.model(kind, n)
  return piper.model(kind, function(m)
    local h = kind == "tied" and m:input("tokens", { "batch", 3 }, "i32") or m:input("x", { "batch", WIDTH }, "f32")
    local kept = {}
    for s = 0, n - 1 do
      piper.annotate("PP", function()
        h = STAGE[kind](s, n, h, kept)
        if s == n - 1 then m:loss(nn.sum_squares(h)) end
      end)
    end
    if kind == "frozen_first" then m:freeze "^layer0%." end
    if kind == "frozen_middle" and n > 1 then m:freeze "^layer1%." end
  end)
end

-- 48 samples of whole numbers for the inputs of any of the models.
function M.data()
  local x, tokens = {}, {}
  for i = 0, 47 do
    x[i + 1] = { i % 3 - 1, i % 5 - 2, (i // 2) % 3 - 1, (i // 7) % 2 }
    tokens[i + 1] = { i % 5, (i * 3 + 1) % 5, (i // 4) % 5 }
  end
  return piper.data.table { x = x, tokens = tokens }
end

-- The runs keep the integer weights in the first two steps, so that a gradient that is not begun
-- anew shows; the third step moves the weights.
function M.rate(step) return step < 3 and 0 or 1 / 64 end

-- Runs 'plan' for three steps: losses, norm and every gradient of each step and the final parameters, as one
-- string that is equal only if every bit is; and the run's memory.
function M.trace(plan, data)
  local run <close> = piper.train(plan, { data = data, seed = 3, lr = M.rate })
  local names = {}
  for _, p in ipairs(plan.model:params()) do names[#names + 1] = p.name end
  table.sort(names)
  local out = {}
  local function add(what, t)
    local bits = {}
    for i, v in ipairs(t) do bits[i] = ("%a"):format(v == 0 and 0 or v) end
    out[#out + 1] = what .. " " .. table.concat(bits, " ")
  end
  for step, m in run:steps(3) do
    add("loss", m.losses)
    add("norm", { m.grad_norm })
    for _, name in ipairs(names) do add(("grad %d %s"):format(step, name), run:gradients(name)) end
  end
  for _, name in ipairs(names) do add("param " .. name, run:params(name)) end
  run:check_replicas()
  return table.concat(out, "\n"), run:memory()
end

-- The first line in which two traces differ.
function M.difference(got, want)
  local a, b = got:gmatch "[^\n]+", want:gmatch "[^\n]+"
  repeat
    local x, y = a(), b()
    if x ~= y then return ("%s\n# instead of %s"):format(x, y) end
  until not x
end

-- A strategy: one stage a pipeline rank with 'devices' each, replicated where there are several.
-- 'sizes[s]' (optional) is the number of devices of stage s, 'flags' (optional) what else replicate says.
function M.strategy(schedule, stages, microbatches, devices, sizes, flags)
  local sets, next_rank = {}, 0
  for s = 1, stages do
    sets[s] = {}
    for j = 1, sizes and sizes[s] or devices do
      sets[s][j] = next_rank
      next_rank = next_rank + 1
    end
  end
  local s = piper.strategy()
  s:add(piper.schedules[schedule] { ranks = stages, microbatches = microbatches, devices = sets })
  for i, set in ipairs(sets) do
    if #set > 1 then
      local spec = { filter = { PP = i - 1 }, devices = set }
      for k, v in pairs(flags or {}) do spec[k] = v end
      s:replicate(spec)
    end
  end
  return s
end

-- What replicate is told, in a line.
function M.flags_text(flags)
  local list = {}
  for k, v in pairs(flags) do list[#list + 1] = v == true and k or ("%s %s"):format(k, v) end
  table.sort(list)
  return #list == 0 and "no flag" or table.concat(list, ", ")
end

-- Every level of ZeRO and both times of reduction: what replicate is told, and how a name says it.
M.zero = {
  { "reduced by microbatch", { reduce = "microbatch" } },
  { "shard_optimizer", { shard_optimizer = true } },
  { "shard_optimizer by microbatch", { shard_optimizer = true, reduce = "microbatch" } },
  { "shard_grads", { shard_grads = true } },
  { "shard_grads by microbatch", { shard_grads = true, reduce = "microbatch" } },
  { "shard_params", { shard_params = true } },
  { "shard_params by microbatch", { shard_params = true, reduce = "microbatch", prefetch = 0 } },
}

return M
