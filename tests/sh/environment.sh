# Variables of the environment that cannot be: a message with the script's line, before the first step.
. "$srcdir/tests/lib/tap.sh"
cd "$tmp" || bail "no temporary folder"
cat >train.lua <<'END'
local piper = require "piper"
local nn = piper.nn
local model = piper.model("chain", function(m)
  local h = m:input("x", { "batch", 4 }, "f32")
  for stage = 0, 1 do
    piper.annotate("PP", function()
      h = nn.linear(h, "layer" .. stage, { out = 4 })
      if stage == 1 then m:loss(nn.sum_squares(h)) end
    end)
  end
end)
local s = piper.strategy():add(piper.schedules.gpipe { ranks = 2, microbatches = 2 })
local plan = piper.compile(model, s, { batch = 4 })
local run = piper.train(plan, { data = piper.data.table { x = { { 1, 2, 3, 4 } } } })
print(plan:check_equivalence { steps = 1 } ~= nil, run:evaluate { data = piper.data.table { x = { { 1, 2, 3, 4 } } } }.batches)
for step in run:steps(2) do print(step) end
END

# refused NAME=VALUE MESSAGE: the script ends with it, and no step has run
refused() {
  env "$1" "$PIPER" train.lua >out 2>err </dev/null
  is "$? $(cat out err)" "1 piper: $2" "$1"
}

what="it takes <pass>:<step>:<rank>[:sleep:<seconds>], for example B:3:1; a pass is F, B, BI or BW, or the kind of another node (update, transfer, all_reduce, count, norm)"
refused PIPER_FAULT=B:1 "train.lua:14: train: PIPER_FAULT is \"B:1\": $what"
refused PIPER_FAULT=C:1:0 "train.lua:14: train: PIPER_FAULT is \"C:1:0\": $what"
refused PIPER_FAULT= "train.lua:14: train: PIPER_FAULT is \"\": $what"
refused PIPER_FAULT=B:1:2 "train.lua:14: train: PIPER_FAULT is about rank 2, but the ranks of this plan are 0-1"
refused PIPER_FAULT=BI:1:1 \
  "train.lua:14: train: PIPER_FAULT is about BI, but rank 1 of this plan has no such instruction: it has transfer, F, B, norm, update, all_reduce"
refused PIPER_JITTER=x "train.lua:14: train: PIPER_JITTER is \"x\": it takes <seed>[:<max us>], for example 1:200"
refused PIPER_WATCHDOG=1m "train.lua:14: train: PIPER_WATCHDOG is \"1m\": it takes seconds, for example 60, or 0 for no watchdog"
refused PIPER_POISON=yes "train.lua:14: train: PIPER_POISON is \"yes\": it takes 0 or 1"
refused PIPER_ISA=v5 "train.lua:14: train: PIPER_ISA is \"v5\": there are kernels for v4, v3"
refused PIPER_STREAMS=2 "train.lua:13: compile: PIPER_STREAMS is \"2\": it is 1 or not set"
refused PIPER_VERIFY=x "train.lua:13: compile: PIPER_VERIFY is \"x\": it is 0, 1 or not set"
refused PIPER_VERIFY=2 "train.lua:13: compile: PIPER_VERIFY is \"2\": it is 0, 1 or not set"
# A value is shown in short, without bytes that are no text.
long=$(printf '%05000d' 0 | tr 0 y)
for name in PIPER_FAULT PIPER_JITTER PIPER_WATCHDOG PIPER_POISON PIPER_ISA PIPER_STREAMS PIPER_VERIFY; do
  env "$name=$(printf 'a\377\t\303\251')$long" "$PIPER" train.lua >out 2>err </dev/null
  like "$(cat err)" "$name is \"a\?\?é$(printf %.52s "$long")\.\.\.\": " "$name, long"
done

# A fault of the plan's own is none of those that a run makes beside it: one device, forward passes only.
PIPER_FAULT=B:2:1 "$PIPER" train.lua >out 2>err </dev/null
is "$? $(cat out)" "1 true	1
1" "PIPER_FAULT=B:2:1 fires in step 2 and not before"
like "$(cat err)" "rank 1, step 2, 1B[01] .*failed on demand" "and says where"
for fine in PIPER_VERIFY=1 PIPER_VERIFY=0 PIPER_VERIFY= PIPER_STREAMS=1 PIPER_POISON=1 PIPER_JITTER=1 PIPER_WATCHDOG=0; do
  env "$fine" "$PIPER" train.lua >out 2>err </dev/null
  is "$? $(tail -n 1 out)" "0 2" "$fine"
done
done_testing
