# The covering parts of the matrix, and random strategies, again, when timing, queues and the memory at the start change.
. "$srcdir/tests/lib/tap.sh"

again() { # NAME VARIABLE=VALUE
  for script in matrix matrix_triples random_strategies; do
    env "$2" "$PIPER" "$srcdir/tests/lua/$script.lua" >"$tmp/out" 2>&1
    ok $? "$script, $1"
    grep -v '^ok' "$tmp/out" | sed 's/^/# /' | head -20
  done
}
again "random sleeps" PIPER_JITTER=1:100
again "one queue a rank" PIPER_STREAMS=1
again "memory that starts as NaN" PIPER_POISON=1
done_testing
