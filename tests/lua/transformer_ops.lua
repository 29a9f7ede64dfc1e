-- Models of the ops that transformers are made of train to the weights of one device, whatever the
-- strategy: dropout included, whose masks must not depend on where a sample is.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local function block(h, name, width)
  h = h + nn.dropout(nn.swiglu(nn.rmsnorm(h, name .. ".a"), name .. ".ffn", { hidden = 10, init = { normal = 0.3 } }), 0.2)
  local u = nn.linear(nn.layernorm(h, name .. ".b"), name .. ".mix", { out = width, init = { normal = 0.3 } })
  -- mixes positions: weights of each position over the others, by products of rows
  local weights = nn.softmax(nn.matmul(u, h:transpose(1, 2)) * 0.3)
  h = h + nn.matmul(nn.dropout(weights, 0.1), nn.gelu(u))
  local left, right = h:slice(2, 0, width // 2), h:slice(2, width // 2)
  return h + nn.layernorm(nn.matmul(nn.silu(left), nn.transpose(right, 1, 2):slice(2, 0, 1)) * h, name .. ".c", { bias = false })
end

local function model_of(stages, tied)
  return piper.model("ops", function(m)
    local tokens, targets = m:input("tokens", { "batch", 5 }, "i32"), m:input("targets", { "batch", 5 }, "i32")
    local h
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        if s == 0 then h = nn.embedding(tokens, "embed", { vocab = 19, width = 8, init = { normal = 0.5 } }) end
        h = block(h, "layers." .. s, 8)
        if s == stages - 1 then
          local logits = nn.linear(nn.rmsnorm(h, "norm"), tied and "embed" or "head", { out = 19, bias = not tied })
          m:loss(nn.cross_entropy(logits, targets, { ignore_index = 7 }))
        end
      end)
    end
  end)
end

local function equal(name, plan)
  for _, dtype in ipairs { "f64", "f32" } do
    local fine, worst = pcall(plan.check_equivalence, plan, { dtype = dtype })
    if not tap.ok(fine, name .. ", " .. dtype) then tap.diag(worst) end
  end
end

local adamw = piper.adamw { lr = 0.01 }
for _, stages in ipairs { 1, 2, 4 } do
  local model = model_of(stages, stages == 2)
  for _, microbatches in ipairs { 1, 3, 8 } do
    for devices = 1, 2 do
      equal(("%d stages, %d microbatches, %d devices"):format(stages, microbatches, devices),
        piper.compile(model, exact.strategy("one_f_one_b", stages, microbatches, devices),
          { batch = 48, optimizer = adamw, clip_norm = 0.5 }))
    end
  end
end

local halves = piper.strategy()
halves:split { filter = {}, dim_name = "MB", num_microbatches = 2 }
for stage = 0, 1 do
  halves:place { filter = { PP = stage }, devices = { stage } }
  local order = {}
  for i, pass in ipairs { "F", "F", "BI", "BI", "BW", "BW" } do
    order[i] = { PP = stage, MB = (i - 1) % 2, PASS = pass }
  end
  halves:order { filters = order }
end
equal("backward in halves", piper.compile(model_of(2), halves, { batch = 16, optimizer = adamw }))

-- A value that the loss ignores passes the check of the data, and no other.
local function losses(values, ignore)
  local m = piper.model("ignore", function(t)
    local x, y = t:input("x", { "batch", 3 }), t:input("y", { "batch" }, "i32")
    t:loss(nn.cross_entropy(x, y, ignore and { ignore_index = ignore }))
  end)
  local run = piper.train(piper.compile(m, piper.strategy(), { batch = 4 }),
    { data = piper.data.table { x = { { 1, 2, 3 }, { 0, 0, 0 }, { 1, 0, 0 }, { 5, 5, 5 } }, y = values } })
  local _ <close> = setmetatable({}, { __close = function() run:close() end })
  local loss
  for _, r in run:steps(1) do loss = r.loss end
  return loss
end

local all = math.log(3)
tap.near(losses({ { -100 }, { 1 }, { -100 }, { 2 } }) * 2, 2 * all, 1e-6, "targets of -100 have no part in the loss")
tap.near(losses({ { -1 }, { 1 }, { -1 }, { 2 } }, -1) * 2, 2 * all, 1e-6, "or of another value")
tap.error_matches(function() losses { { -100 }, { 1 }, { -99 }, { 2 } } end,
  "data: y of sample 2 is %-99; it runs from 0 to 2, or is %-100")

-- Steps differ in what they drop, seeds too; the same seed drops the same.
local function sums(seed)
  local m = piper.model("dropout", function(t)
    local x = t:input("x", { "batch", 64 })
    t:loss(nn.sum(nn.dropout(x, 0.5)) + nn.sum(nn.dropout(x, 0.5)) * 1000)
  end)
  local ones = {}
  for i = 1, 64 do ones[i] = 1 end
  local run = piper.train(piper.compile(m, piper.strategy(), { batch = 2, dtype = "f64" }),
    { seed = seed, data = piper.data.table { x = { ones } } })
  local list = {}
  for _, r in run:steps(2) do list[#list + 1] = r.loss end
  run:close()
  return list
end
local a, b = sums(1), sums(2)
tap.ok(a[1] ~= a[2], "another step drops other elements")
tap.ok(a[1] ~= b[1], "so does another seed")
tap.ok(a[1] % 1000 ~= a[1] // 1000, "and another dropout of the model")
tap.is(table.concat(sums(1), " "), table.concat(a, " "), "the same seed drops the same")

tap.done()
