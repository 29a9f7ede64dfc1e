/* pass_count - how many targets there are, where a loss divides by that.
 *
 * requires  every node placed
 * ensures   for each F of a chunk that asks for counts there is a COUNT on the same devices and
 *           samples, which waits for nothing. All COUNTs of a chunk feed one ALL_REDUCE over the
 *           devices that run it, and that feeds each F
 * breaks    nothing
 * on error  out of memory only
 *
 * The reduction is there for one device, too: it is what the Fs wait for, and vanishes in lowering.
 * Backward passes read the counts as well; they come after the F of their samples. */
#include "passes/pass.h"

#include <stdlib.h>

/* The op's line of the chunk's first count. */
static uint32_t line_of(Dag *d, const Chunk *c) {
  uint32_t o = c->first_op;
  while (graph_op(d->graph, (OpId){o})->count == 0) o++;
  return intern_id(d->names, graph_name(d->graph, graph_op(d->graph, (OpId){o})->line));
}

/* The reduction of chunk c's counts, over no device yet; 0: out of memory. */
static uint32_t add_reduction(Dag *d, ChunkId c, uint32_t line) {
  const TensorId counts = dag_tensor(d, (Tensor){.kind = TENSOR_COUNTS, .chunk = c});
  const uint32_t stream = intern_id(d->names, "dp_stream");
  const NodeId n = dag_add_node(d, NODE_ALL_REDUCE, line);
  if (counts.i == 0 || stream == 0 || n.i == 0) return 0;
  d->tensor[n.i] = counts.i;
  d->stream[n.i] = stream;
  return n.i;
}

static bool add_count(Dag *d, uint32_t f, uint32_t reduction) {
  const uint32_t stream = intern_id(d->names, "default_stream");
  const TensorId counts = {d->tensor[reduction]};
  const NodeId n = dag_add_node(d, NODE_COUNT, d->line[reduction]);
  if (stream == 0 || n.i == 0) return false;
  d->chunk[n.i] = d->chunk[f];
  d->devs[n.i] = d->devs[f];
  d->lo[n.i] = d->lo[f];
  d->hi[n.i] = d->hi[f];
  d->tags[n.i] = d->tags[f];
  d->mb[n.i] = d->mb[f];
  d->stream[n.i] = stream;
  d->devs[reduction] = devsets_union(d->devsets, d->devs[reduction], d->devs[f]);
  return d->devs[reduction] != 0 &&
         dag_add_edge(d, n, (NodeId){reduction}, counts).i != 0 &&
         dag_add_edge(d, (NodeId){reduction}, (NodeId){f}, counts).i != 0;
}

PiperStatus pass_count(Dag *d, const Strategy *s, const PassOptions *opt, PiperErr *err) {
  (void)s, (void)opt;
  const Graph *g = d->graph;
  bool held = true, any = false;
  uint32_t *reduction = calloc(g->chunks.n, sizeof *reduction); /* by chunk */
  if (reduction == NULL) return err_nomem(err, "count");
  for (uint32_t c = 1; held && c < g->chunks.n; c++) {
    const Chunk *chunk = graph_chunk(g, (ChunkId){c});
    if (chunk->n_counts == 0) continue;
    const uint32_t line = line_of(d, chunk);
    reduction[c] = line != 0 ? add_reduction(d, (ChunkId){c}, line) : 0;
    held = reduction[c] != 0;
    any = true;
  }
  const uint32_t n = d->n;
  for (uint32_t f = 1; held && any && f < n; f++)
    if (d->kind[f] == NODE_COMPUTE && d->pass[f] == PASS_F && reduction[d->chunk[f]] != 0)
      held = add_count(d, f, reduction[d->chunk[f]]);
  free(reduction);
  return held ? PIPER_OK : err_nomem(err, "count");
}
