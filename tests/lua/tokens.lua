-- piper.data.tokens: files of ids, sampled as data.text samples bytes; and what can be wrong with one.
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local CONTEXT = 4
local paths = {}
local function file_of(bytes, path)
  path = path or os.tmpname()
  paths[#paths + 1] = path
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
  return path
end
local function ids(list, width)
  local out = {}
  for i, id in ipairs(list) do out[i] = (width == 16 and "<I2" or "<I4"):pack(id) end
  return table.concat(out)
end

-- Its loss is the sum of w[token] * target over the batch: it tells every sample apart.
local function model_of(vocab)
  return piper.model("probe", function(m)
    local x, y = m:input("tokens", { "batch", CONTEXT }, "i32"), m:input("targets", { "batch", CONTEXT }, "i32")
    local a = nn.embedding(x, "a", { vocab = vocab, width = 1, init = function(i) return i end })
    local b = nn.embedding(y, "b", { vocab = vocab, width = 1, init = function(i) return math.sin(i) end })
    m:loss(nn.sum(a * b))
  end)
end
local small = piper.compile(model_of(300), piper.strategy(), { batch = 3, dtype = "f64", optimizer = piper.sgd { lr = 0 } })
local function losses(plan, data, steps, seed)
  local run <close> = piper.train(plan, { data = data, seed = seed })
  local out = {}
  for _, m in run:steps(steps) do out[#out + 1] = ("%.17g"):format(m.loss) end
  return table.concat(out, " ")
end

-- The bytes of a text, as ids of either width, are the samples of the text, over several epochs.
local text, bytes = {}, {}
for i = 1, 97 do
  bytes[i] = (i * i * 7 + i) % 256
  text[i] = string.char(bytes[i])
end
local of_text = piper.data.text(file_of(table.concat(text)), { context = CONTEXT })
for _, width in ipairs { 16, 32 } do
  local data = piper.data.tokens(file_of(ids(bytes, width)), { width = width, context = CONTEXT })
  tap.is(losses(small, data, 20, 3), losses(small, of_text, 20, 3), width .. " bits: the samples of the text with these bytes")
  tap.is(data:samples(), 24, width .. " bits: windows of an epoch")
end
tap.ok(losses(small, of_text, 20, 3) ~= losses(small, of_text, 20, 4), "another seed: another order")

-- A target is the next id; numbers above a byte, and above 16 bits.
local big = piper.compile(model_of(70001), piper.strategy(), { batch = 1, dtype = "f64", optimizer = piper.sgd { lr = 0 } })
local large = { 70000, 1, 65536, 300, 69999 }
local want = 0
for i = 1, CONTEXT do want = want + large[i] * math.sin(large[i + 1]) end
tap.near(tonumber(losses(big, piper.data.tokens(file_of(ids(large, 32)), { width = 32, context = CONTEXT }), 1)), want, 1e-6,
  "ids above 16 bits, a target is the next one")

-- Far larger than what is read: a sparse file of 3 GiB.
local sparse = file_of ""
local f = assert(io.open(sparse, "r+b"))
f:seek("set", 3 * (1 << 30) - 2)
f:write "\1\0"
f:close()
local huge = piper.data.tokens(sparse, { width = 16, context = CONTEXT })
tap.is(huge:samples(), ((3 << 30) // 2 - 1) // CONTEXT, "a file larger than what fits into 32 bits")
tap.is(losses(small, huge, 2), "0 0", "whose samples are read where they are")
os.remove(sparse)

-- What can be wrong.
local function fails(pattern, path, spec)
  tap.error_matches(function() piper.data.tokens(path, spec) end, "^%S*tokens.lua:%d+: data.tokens: " .. pattern, pattern)
end
local spec = { width = 16, context = CONTEXT }
local good = file_of(ids({ 1, 2, 3, 4, 5, 6, 7, 8, 9 }, 16))
fails('cannot read "/nowhere/train.bin": No such file', "/nowhere/train.bin", spec)
fails('"/" is a directory, not a file', "/", spec)
fails('"/dev/null" is a pipe or a device, not a file', "/dev/null", spec)
fails('".*" is empty', file_of "", spec)
fails('".*" has 7 bytes, which are no ids of 16 bits each', file_of "1234567", spec)
fails('".*" has 18 bytes, which are no ids of 32 bits each', good, { width = 32, context = CONTEXT })
fails('".*" has 4 ids; one sample with context = 4 takes 5', file_of "12345678", spec)
fails("width is 8: ids have 16 or 32 bits", good, { width = 8, context = CONTEXT })
fails('field "width" is missing', good, { context = CONTEXT })
fails('field "context" is 0', good, { width = 16, context = 0 })
fails('unknown field "with" %(did you mean "width"%?%)', good, { with = 16, width = 16, context = 4 })
fails("argument 1 %(path%) is { 1 }, not a string", { 1 }, spec)

local function train_fails(pattern, data, change)
  local run <close> = piper.train(small, { data = data })
  if change then change() end
  tap.error_matches(function() for _ in run:steps(3) do end end, pattern)
end
train_fails('data.tokens: id 4 of ".*" is 300; the input "targets" runs from 0 to 299',
  piper.data.tokens(file_of(ids({ 1, 2, 3, 4, 300 }, 16)), spec))
train_fails('data.tokens: id 1 of ".*" is 4294967196; the input "tokens" runs from 0 to 299',
  piper.data.tokens(file_of(ids({ 1, (1 << 32) - 100, 3, 4, 5 }, 32)), { width = 32, context = CONTEXT }))
local shrinking = file_of(ids(bytes, 16))
train_fails('data.tokens: ".*" has become shorter: id %d+ is not there any more',
  piper.data.tokens(shrinking, spec), function() file_of("12345678", shrinking) end)
local floats = piper.model("floats", function(m) m:loss(nn.sum_squares(m:input("tokens", { "batch", CONTEXT }))) end)
tap.error_matches(function()
  piper.train(piper.compile(floats, piper.strategy(), { batch = 1 }), { data = piper.data.tokens(good, spec) })
end, 'train: the input "tokens" is f32; data.tokens gives i32')
tap.error_matches(function() piper.train(small, { data = piper.data.tokens(good, { width = 16, context = 3 }) }) end,
  'train: the model\'s input "tokens" takes 4 values a sample, the data %(tokens%) has 3')

for _, path in ipairs(paths) do os.remove(path) end
tap.done()
