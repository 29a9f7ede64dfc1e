# The samples about schedules and passes run as they are and show what they say.
. "$srcdir/tests/lib/tap.sh"

run() { # NAME: its output is in $out
  if out=$("$PIPER" "$srcdir/samples/$1.lua" 2>&1 </dev/null); then ok 0 "$1.lua runs"; else ok 1 "$1.lua runs"; diag "$out"; fi
  like "$(sed -n 1p "$srcdir/samples/$1.lua")" '^-- [A-Z]' "$1.lua begins with its purpose"
}

run zbv
like "$out" '^ZBV +step 51, idle +5.9%' "zbv.lua: the bubble is a fifth of 1F1B's"
like "$out" '^3F0 4F0 3F1 4F1' "zbv.lua: the last rank has two neighbouring stages"
like "$out" '^step  60  loss [0-9.]+$' "zbv.lua trains"

run dualpipe
like "$out" '^stage 0 of microbatches 4 5 6 7 on rank 3$' "dualpipe.lua: the second half enters at the last rank"
like "$out" '\(0F3\+3B5\)' "dualpipe.lua: overlapped pairs"
like "$out" '^the same training as on one device: gradients differ by at most [0-9.]+e-1[0-9]$' "dualpipe.lua trains as one device"

run custom_schedule
like "$out" 'custom_schedule.lua:[0-9]+: check: rank 1, column 3: 1F0 again' "custom_schedule.lua: the slip is named"
like "$out" '^automatic +step 42, .* rank 0 holds 3 microbatches' "custom_schedule.lua: the search keeps to its limit"

run import_schedule
like "$out" 'row 1, column 5: 3F0 is on rank 0, but placement "loop" puts stage 3 on rank 1$' "import_schedule.lua: placements are checked"
like "$out" '^written and read again: the same plan$' "import_schedule.lua: out and in again"

run pass_order
like "$out" '^0F0 0F1 0F2 0F3 0F4 0F5 0B0' "pass_order.lua: without an order"
like "$out" '^0F0 0F1 0F2 0F3 0B0 0F4 0B1' "pass_order.lua: 1F1B"
like "$out" 'pass "order_again": the actions of the directive: true, its digest: true$' "pass_order.lua: the same plan as with the directive"
like "$out" 'gradients [0-9.]+e-1[0-9],' "pass_order.lua trains as one device"

run pass_delay_reductions
like "$out" 'all_reduce layers\.2\.mix\.weight\.\. 0B0/7 waits for its gradients only$' "pass_delay_reductions.lua: before the pass"
like "$out" 'all_reduce layers\.2\.mix\.weight\.\. 0B0/7 waits for all_to_all grad layers\.0\.mlp from experts 0B0/2$' "pass_delay_reductions.lua: and after it"
like "$out" '^predicted, .*: step [0-9.]+ us without the pass, step [0-9.]+ us with it$' "pass_delay_reductions.lua: what it costs"
like "$out" 'gradients [0-9.]+e-1[0-9],' "pass_delay_reductions.lua trains as one device"

run dualpipev_experts
like "$out" '\(0F3\+3B1\)' "dualpipev_experts.lua: overlapped pairs"
like "$out" 'members one after another [0-9.]+ .?s' "dualpipev_experts.lua: what a step would take without overlap"
like "$out" '^all_to_all: (6[5-9]|[789][0-9])% hidden$' "dualpipev_experts.lua: most of the exchanges are hidden"
like "$out" '^the same training as on one device: gradients differ by at most [0-9.]+e-1[0-9]$' "dualpipev_experts.lua trains as one device"
like "$out" '^step  40  loss [0-9.]+$' "dualpipev_experts.lua trains"
lines=$(awk 'seen { n++ } /^end\)$/ { seen = 1 } END { print n }' "$srcdir/samples/dualpipev_experts.lua")
ok "$([ "$lines" -gt 0 ] && [ "$lines" -le 40 ]; echo $?)" "dualpipev_experts.lua: $lines lines beside the model, at most 40"

run zero3_1f1b
like "$out" '^ZeRO-3 +rank 0 holds +1[0-9]+' "zero3_1f1b.lua: model state a device"
like "$out" '^all_gather +ag_stream +[0-9]+ calls +[0-9.]+ ms +[5-9][0-9].[0-9]% hidden$' "zero3_1f1b.lua: gathers hide"
like "$out" '^the same training as on one device: gradients differ by at most [0-9.]+e-1[0-9]$' "zero3_1f1b.lua trains as one device"
like "$out" '^step  60  loss [0-9.]+$' "zero3_1f1b.lua trains"
done_testing
