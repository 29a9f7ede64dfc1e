# Pipeline, replicas, experts and overlap for 3000 steps of random sleeps: no deadlock, and one order of the
# collectives of each communicator on all ranks.
exec "$builddir/tests/c/overlap_achieved.t" 3000
