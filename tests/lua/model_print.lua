-- print(model); the lines in the text below are of this file
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local here = debug.getinfo(1, "S").short_src

local model = piper.model("gpt", function(m)
  local tokens = m:input("tokens", { "batch", 16 }, "i32")
  m:input("mask", { "batch", 16 })
  local h = piper.annotate("PP", function() return nn.embedding(tokens, "embed", { vocab = 256, width = 32 }) end)
  piper.annotate("PP", function()
    h = nn.relu(nn.linear(nn.relu(nn.linear(h, "up", { out = 32 })), "up", { out = 32 }))
    m:freeze "up"
  end)
  local logits = nn.linear(h, "embed", { out = 256, bias = false })
  tap.is(tostring(m), 'model "gpt", not complete yet', "while it is traced")
  m:loss(nn.cross_entropy(logits, tokens))
end)

tap.is(tostring(model), ([[
model "gpt": 3 chunks, 7 ops, 9,248 parameters (8,192 trained), loss at HERE:18

  input   shape        type   values
  tokens  [batch, 16]  i32    0 to 255
  mask    [batch, 16]  float  unused

  chunk  scopes  ops                    parameters  backward  line
  1      PP=0    embedding                   8,192  yes       HERE:11
  2      PP=1    2 linear, 2 relu            1,056  yes       HERE:13
  3      -       linear, cross_entropy       8,192  yes       HERE:16

  parameter     shape      elements  initial values  chunks
  embed.weight  [256, 32]     8,192  normal 0.02     1, 3 (tied)
  up.weight     [32, 32]      1,024  normal 0.02     2, frozen
  up.bias       [32]             32  constant 0      2, frozen]]):gsub("HERE", (here:gsub("%%", "%%%%"))), "a complete one")

tap.done()
