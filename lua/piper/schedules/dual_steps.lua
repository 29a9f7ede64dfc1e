-- dual_steps - the eight steps that DualPipe and DualPipeV have in common (DeepSeek-AI, "DeepSeek-V3
-- Technical Report", 2024, arXiv 2412.19437, section 3.2.1, and their code DualPipe 1.0).
--
-- A rank is in two flows: 0, which it meets first, and 1, which comes back to it. In the main part it
-- runs forward of one together with backward of the other, so that the communication of each hides
-- behind the compute of the other.
local actions = require "piper.schedules.actions"
local F, B, BI, BW, pair = actions.F, actions.B, actions.BI, actions.BW, actions.pair

---Adds the actions of the rank at 'position' of 'length', the distance at which a flow turns round.
---@param position integer
---@param length integer
---@param microbatches integer  of each flow
---@param stage table<integer, integer>  stage[flow]
---@param mb fun(flow: integer, k: integer): integer  the k-th microbatch of a flow
---@param add fun(group: piper.Filter|piper.Filter[])
return function(position, length, microbatches, stage, mb, add)
  microbatches = math.max(microbatches, 2 * length)
  local forwards, backwards, waiting = { [0] = 0, 0 }, { [0] = 0, 0 }, {}
  local function forward(flow)
    forwards[flow] = forwards[flow] + 1
    return F(stage[flow], mb(flow, forwards[flow] - 1))
  end
  local function backward(flow, split) -- the weight gradients of a split one join the queue
    backwards[flow] = backwards[flow] + 1
    local k = mb(flow, backwards[flow] - 1)
    if split then waiting[#waiting + 1] = BW(stage[flow], k) end
    return (split and BI or B)(stage[flow], k)
  end
  local function weight() add(table.remove(waiting, 1)) end
  local behind = length - 1 - position -- ranks before the turn

  -- 1 and 2: warm-up, into flow 0, then into both
  for _ = 1, 2 * behind do add(forward(0)) end
  for _ = 0, position do add(forward(0)) add(forward(1)) end
  -- 3: backward in two, for the ranks before wait for its first half
  for _ = 1, behind do add(backward(1, true)) weight() add(forward(1)) end
  -- 4: the main part, overlapped pairs; the first one at the turn is shorter apart
  for i = 1, microbatches - 2 * length + position + 1 do
    local f, b = forward(0), backward(1)
    if i == 1 and behind == 0 then add(f) add(b) else add(pair(f, b)) end
    add(pair(forward(1), backward(0)))
  end
  -- 5 and 6: no forward is left in flow 0, then in none; from the middle of 6 on split
  for _ = 1, behind do add(backward(1)) add(pair(forward(1), backward(0))) end
  local half, odd = (position + 1) // 2, position % 2
  for i = 0, position do
    add(backward(1, i > half or i == half and odd == 1))
    add(backward(0, i >= half))
  end
  -- 7 and 8: weight gradients fill what is left
  for _ = 1, behind do weight() add(backward(0, true)) end
  for _ = 0, position do weight() end
end
