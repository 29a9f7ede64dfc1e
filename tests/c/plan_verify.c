/* Every fault that plan_verify knows, put into a plan that was right, and its sentence. */
#include "lib/plans.h"

static RankPlan *rank_of(Plan *p, int32_t rank) { return &p->ranks[plan_rank(p, rank) - p->ranks]; }

static Instr *instr(Plan *p, int32_t rank, InstrKind kind, Pass pass, uint32_t k) {
  return &rank_of(p, rank)->instrs.at[plans_instr(p, rank, kind, pass, k)];
}

static Buffer *buffer_of(Plan *p, int32_t rank, const Instr *x, BufferRole role) {
  RankPlan *r = rank_of(p, rank);
  for (uint32_t k = 0; k < x->n_accesses; k++) {
    Buffer *b = &r->buffers.at[r->accesses.at[x->access_first + k].buffer];
    if (b->role == role) return b;
  }
  bail("no such buffer");
  return NULL;
}

/* Addresses follow the buffers. */
static void resolve(RankPlan *r) {
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    Instr *x = &r->instrs.at[i];
    for (uint32_t k = 0; k < x->n_accesses; k++) {
      const Access *a = &r->accesses.at[x->access_first + k];
      const uint64_t at = r->buffers.at[a->buffer].offset + a->lo;
      if (x->kind == INSTR_RUN) r->bind_offset.at[x->bind_first + k] = at;
      else if (k == 0) x->offset = at;
      else x->part = at;
    }
  }
}

/* The instruction vanishes; who waited for it waits no more. */
static void drop(RankPlan *r, uint32_t i) {
  for (uint32_t j = i + 1; j < r->instrs.n; j++) {
    Instr *x = &r->instrs.at[j];
    uint32_t n = 0;
    uint32_t *waits = r->waits.at + x->wait_first;
    for (uint32_t k = 0; k < x->n_waits; k++)
      if (waits[k] != i) waits[n++] = waits[k] - (waits[k] > i);
    x->n_waits = n;
    r->instrs.at[j - 1] = *x;
  }
  r->instrs.n--;
}

static void swap(RankPlan *r, uint32_t i, uint32_t j) {
  const Instr t = r->instrs.at[i];
  r->instrs.at[i] = r->instrs.at[j];
  r->instrs.at[j] = t;
}

/* Two stages on ranks 0 and 1, 1F1B with two microbatches. */
static Plan *pipeline(bool single_stream) {
  static Graph *g;
  if (g == NULL) g = model_chain(2);
  TestStrategy t = {0};
  plans_1f1b(&t, 2, 2, false);
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4, .options.single_stream = single_stream});
  strategy_clear(&t);
  return p;
}

/* One stage on ranks 0 and 1, one stream a rank. */
static Plan *replicas(void) {
  static Graph *g;
  if (g == NULL) g = model_chain(1);
  TestStrategy t = {0};
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "", "0,1");
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4, .options.single_stream = true});
  strategy_clear(&t);
  return p;
}

/* Four experts, spread over ranks 0 and 1, one stream a rank. */
static Plan *spread(void) {
  static Graph *g;
  if (g == NULL) {
    g = model_new();
    const ValueId x = model_linear(g, "l0", model_input(g, "x"));
    model_loss(g, model_op(g, OP_SUM_SQUARES, NULL, model_moe(g, "moe", x, 4), MODEL_NONE));
    model_cut(g);
  }
  TestStrategy t = {0};
  strategy_place(&t, "", "0,1");
  strategy_replicate(&t, "EP=false", "0,1");
  strategy_shard(&t, "EP=*", "0,1", 2);
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4, .options.single_stream = true});
  strategy_clear(&t);
  return p;
}

/* The sentence, which is the name of the point as well. */
static void faulty(Plan *p, const char *want) {
  PiperErr err = {0};
  plan_verify(p, NULL, &err);
  is_str(err.text, want, "%s", want);
  if (err.code != PIPER_EBUG && want[0] != '\0') ok(false, "it is a fault of ours");
  plan_free(p);
}

static void right(void) {
  PlanProof proof;
  Plan *p = pipeline(false);
  is_int(plan_verify(p, &proof, NULL), PIPER_OK, "a plan is right");
  is_int(proof.instrs, 22, "its instructions are counted");
  is_int(proof.pairs, 4, "and pairs of send and recv");
  is_int(proof.collectives, 1, "and collectives");
  ok(proof.conflicts > 20, "and what was proved ordered");
  plan_free(p);
}

static void races(void) {
  Plan *p = pipeline(false);
  instr(p, 0, INSTR_SEND, PASS_F, 1)->n_waits = 0;
  faulty(p, "plan: race: rank 0, send to 1 of transfer l0 0F1 0>1 (m.lua:2) may read value l0, "
            "samples [2, 4) while rank 0, 0F1 (m.lua:1) writes it");
  p = pipeline(false);
  instr(p, 1, INSTR_RUN, PASS_F, 0)->n_waits = 0;
  faulty(p, "plan: race: rank 1, 1F0 (m.lua:2) may read value l0, samples [0, 2) before rank 1, "
            "recv from 0 of transfer l0 0F0 0>1 (m.lua:2) writes it");

  /* The gradient that stage 0 gets, moved to the value that it may still be sending. */
  p = pipeline(false);
  Buffer *value = buffer_of(p, 0, instr(p, 0, INSTR_SEND, PASS_F, 1), BUFFER_VALUE);
  Buffer *other = buffer_of(p, 0, instr(p, 0, INSTR_RECV, PASS_B, 0), BUFFER_GRAD);
  other->offset = value->offset;
  instr(p, 0, INSTR_RECV, PASS_B, 0)->n_waits = 0;
  resolve(rank_of(p, 0));
  faulty(p, "plan: reused too early: rank 0, recv from 1 of transfer grad l0 1B0 1>0 (m.lua:1) may "
            "write gradient of l0, samples [0, 2) while rank 0, 0F1 (m.lua:1) writes value l0, "
            "samples [2, 4) on the same bytes");
  p = pipeline(true);
  value = buffer_of(p, 1, instr(p, 1, INSTR_RECV, PASS_F, 0), BUFFER_VALUE);
  other = buffer_of(p, 1, instr(p, 1, INSTR_RECV, PASS_F, 1), BUFFER_VALUE);
  other->offset = value->offset;
  resolve(rank_of(p, 1));
  faulty(p,
         "plan: rank 1, 1B0 (m.lua:2) reads value l0, samples [0, 2), whose bytes rank 1, recv "
         "from 0 of transfer l0 0F1 0>1 (m.lua:2) has overwritten with value l0, samples [2, 4)");
  p = pipeline(true);
  const Instr *b = instr(p, 1, INSTR_RUN, PASS_B, 0);
  buffer_of(p, 1, b, BUFFER_GRAD)->offset = buffer_of(p, 1, b, BUFFER_VALUE)->offset;
  resolve(rank_of(p, 1));
  faulty(p, "plan: rank 1, 1B0 (m.lua:2) reads value l0, samples [0, 2), whose bytes rank 1, 1B0 "
            "(m.lua:2) has overwritten with gradient of l0, samples [0, 2)");
  p = pipeline(true);
  drop(rank_of(p, 0), plans_instr(p, 0, INSTR_RUN, PASS_F, 0));
  faulty(p, "plan: rank 0, send to 1 of transfer l0 0F0 0>1 (m.lua:2) reads value l0, samples [0, "
            "2), which nothing writes");
}

static void meetings(void) {
  Plan *p = pipeline(false);
  swap(rank_of(p, 0), plans_instr(p, 0, INSTR_SEND, PASS_F, 0),
       plans_instr(p, 0, INSTR_SEND, PASS_F, 1));
  instr(p, 0, INSTR_SEND, PASS_F, 0)->n_waits = 0;
  faulty(p, "plan: rank 0, send to 1 of transfer l0 0F1 0>1 (m.lua:2) meets rank 1, recv from 0 of "
            "transfer l0 0F0 0>1 (m.lua:2), and these are not the same data: value l0, samples [2, "
            "4) and value l0, samples [0, 2)");
  p = pipeline(true); /* send F1 and recv B0: rank 1 does the former first */
  swap(rank_of(p, 0), plans_instr(p, 0, INSTR_SEND, PASS_F, 1),
       plans_instr(p, 0, INSTR_RECV, PASS_B, 0));
  faulty(p, "plan: deadlock: rank 0, send to 1 of transfer l0 0F1 0>1 (m.lua:2) comes in its "
            "stream after rank 0, recv from 1 of transfer grad l0 1B0 1>0 (m.lua:1); rank 1, send "
            "to 0 of transfer grad l0 1B0 1>0 (m.lua:1) comes in its stream after rank 1, 1B0 "
            "(m.lua:2); rank 1, 1B0 (m.lua:2) comes in its stream after rank 1, recv from 0 of "
            "transfer l0 0F1 0>1 (m.lua:2)");
  p = pipeline(true);
  drop(rank_of(p, 1), plans_instr(p, 1, INSTR_RECV, PASS_F, 1));
  faulty(p, "plan: rank 0, send to 1 of transfer l0 0F1 0>1 (m.lua:2) has no recv: 2 sends and 1 "
            "recvs on \"all\" from rank 0 to rank 1");
  p = pipeline(true);
  drop(rank_of(p, 1), plans_instr(p, 1, INSTR_RECV, PASS_F, 0));
  faulty(p, "plan: rank 0, send to 1 of transfer l0 0F0 0>1 (m.lua:2) meets rank 1, recv from 0 of "
            "transfer l0 0F1 0>1 (m.lua:2), and these are not the same data: value l0, samples [0, "
            "2) and value l0, samples [2, 4)");
  p = pipeline(true);
  drop(rank_of(p, 0), plans_instr(p, 0, INSTR_SEND, PASS_F, 1));
  faulty(p, "plan: rank 1, recv from 0 of transfer l0 0F1 0>1 (m.lua:2) has no send: 1 sends and 2 "
            "recvs on \"all\" from rank 0 to rank 1");
  p = pipeline(true);
  Instr *send = instr(p, 0, INSTR_SEND, PASS_F, 0);
  send->bytes /= 2;
  rank_of(p, 0)->accesses.at[send->access_first].hi /= 2;
  faulty(p, "plan: rank 0, send to 1 of transfer l0 0F0 0>1 (m.lua:2) has 16 bytes and meets rank "
            "1, recv from 0 of transfer l0 0F0 0>1 (m.lua:2), which has 32");
  p = replicas();
  drop(rank_of(p, 1), plans_instr(p, 1, INSTR_ALL_REDUCE, PASS_NONE, 0));
  faulty(p, "plan: collectives do not match on \"all\": rank 0 joins 2, rank 1 joins 1");
  p = replicas();
  drop(rank_of(p, 0), plans_instr(p, 0, INSTR_ALL_REDUCE, PASS_NONE, 0));
  drop(rank_of(p, 0), plans_instr(p, 0, INSTR_ALL_REDUCE, PASS_NONE, 0));
  faulty(p, "plan: collectives do not match on \"all\": rank 1 joins 2, rank 0 joins 0");
  p = replicas();
  RankPlan *r = rank_of(p, 1);
  const uint32_t last = plans_instr(p, 1, INSTR_ALL_REDUCE, PASS_NONE, 1);
  swap(r, plans_instr(p, 1, INSTR_ALL_REDUCE, PASS_NONE, 0), last);
  faulty(p, "plan: rank 0, all_reduce l0.weight 0-1 (t.lua:2) meets rank 1, all_reduce metrics 0-1 "
            "(m.lua:3), and these are not the same data: gradients of l0.weight and metrics");
  p = pipeline(false);
  p->ranks[0].streams.at[1].name = p->ranks[0].streams.at[0].name;
  faulty(p, "plan: rank 0 has two streams \"default_stream\"");
}

static void exchanges(void) {
  PlanProof proof;
  Plan *p = spread();
  is_int(plan_verify(p, &proof, NULL), PIPER_OK, "experts that are spread");
  is_int(proof.collectives, 4 + 2, "four exchanges, and two reductions");
  plan_free(p);
  p = spread();
  drop(rank_of(p, 1), plans_instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 1));
  faulty(p, "plan: collectives do not match on \"all\": rank 0 joins 6, rank 1 joins 5");
  p = spread();
  RankPlan *r = rank_of(p, 1);
  swap(r, plans_instr(p, 1, INSTR_ALL_TO_ALL, PASS_B, 0),
       plans_instr(p, 1, INSTR_ALL_TO_ALL, PASS_B, 1));
  faulty(p,
         "plan: rank 0, all_to_all grad made to experts 0B0 0-1 (t.lua:3) and rank 1, all_to_all "
         "grad blocks from experts 0B0 0-1 (t.lua:3), which meet, do different things");
  p = spread();
  instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0)->share_first ^= 1;
  faulty(p, "plan: rank 1, all_to_all blocks to experts 0F0 0-1 (t.lua:3) exchanges value blocks, "
            "samples [2, 4) for value blocks, samples [0, 4)");
  p = spread();
  instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0)->share_first = 99;
  faulty(p, "plan: rank 1, all_to_all blocks to experts 0F0 0-1 (t.lua:3) exchanges nothing");
  p = spread();
  instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0)->group = 99;
  faulty(p, "plan: rank 1, all_to_all blocks to experts 0F0 0-1 (t.lua:3) is a collective of other "
            "ranks");
  p = spread();
  p->exchanges.at[instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0)->share_first].blocks = 1;
  faulty(
      p,
      "plan: rank 0, all_to_all blocks to experts 0F0 0-1 (t.lua:3) exchanges the wrong samples");
  p = spread();
  instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0)->part += 4;
  faulty(p, "plan: rank 1, all_to_all blocks to experts 0F0 0-1 (t.lua:3) has the wrong address");
  p = spread();
  Instr *x = instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0);
  rank_of(p, 1)->accesses.at[x->access_first + 1].write = false;
  faulty(p, "plan: rank 1, all_to_all blocks to experts 0F0 0-1 (t.lua:3) has the wrong access");
  p = spread();
  x = instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0);
  rank_of(p, 1)->accesses.at[x->access_first].buffer =
      rank_of(p, 1)->accesses.at[x->access_first + 1].buffer;
  faulty(p, "plan: rank 1, all_to_all blocks to experts 0F0 0-1 (t.lua:3) exchanges value blocks, "
            "samples [0, 4) for value blocks, samples [0, 4)");
  p = spread();
  x = instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0);
  rank_of(p, 1)->accesses.at[x->access_first].hi -= 8;
  faulty(
      p,
      "plan: rank 1, all_to_all blocks to experts 0F0 0-1 (t.lua:3) exchanges the wrong samples");
  p = spread(); /* where it still reads */
  x = instr(p, 1, INSTR_ALL_TO_ALL, PASS_F, 0);
  Buffer *own = buffer_of(p, 1, x, BUFFER_VALUE);
  own[1].offset = own->offset;
  resolve(rank_of(p, 1));
  faulty(p, "plan: rank 1, all_to_all blocks to experts 0F0 0-1 (t.lua:3) reads value blocks, "
            "samples [2, 4) and writes value blocks, samples [0, 4) on the same bytes");
}

static void updates(void) {
  Plan *p = pipeline(true);
  drop(rank_of(p, 0), plans_instr(p, 0, INSTR_RUN, PASS_B, 1));
  faulty(p, "plan: nothing contributes samples [2, 4) of the chunk at m.lua:1 to the gradients of "
            "l0.weight");
  p = pipeline(true);
  drop(rank_of(p, 0), plans_instr(p, 0, INSTR_RUN, PASS_B, 0));
  faulty(p,
         "plan: rank 0, 0B1 (m.lua:1) adds to the gradients of l0.weight, which nothing has begun");
  p = pipeline(true);
  const Instr *b = instr(p, 0, INSTR_RUN, PASS_B, 0);
  for (uint32_t k = 0; k < b->n_accesses; k++)
    p->ranks[0].bind_first_write.at[b->bind_first + k] = 0;
  faulty(p,
         "plan: rank 0, 0B0 (m.lua:1) adds to the gradients of l0.weight, which nothing has begun");
  p = pipeline(true);
  RankPlan *r = rank_of(p, 0);
  const uint32_t update = (uint32_t)r->instrs.n - 2;
  drop(r, update);
  faulty(p, "plan: rank 0 updates l0.weight 0 times instead of 1");
  p = pipeline(true);
  r = rank_of(p, 0);
  r->instrs.at[update - 1] = r->instrs.at[update]; /* in place of the norm */
  faulty(p, "plan: rank 0 updates l0.weight 2 times instead of 1");
  p = pipeline(true);
  swap(rank_of(p, 0), plans_instr(p, 0, INSTR_RUN, PASS_B, 1), update);
  faulty(p, "plan: rank 0, 0B1 (m.lua:1) contributes to the gradients of l0.weight after rank 0, "
            "norm l0.weight 0 (m.lua:1)");
  p = replicas();
  for (int i = 0; i < 2; i++)
    drop(rank_of(p, i), plans_instr(p, i, INSTR_ALL_REDUCE, PASS_NONE, 0));
  faulty(p, "plan: rank 0, norm l0.weight 0 (t.lua:2) uses the gradients of l0.weight before they "
            "are summed over their holders");
}

/* One stage on ranks 0 and 1, two microbatches, one stream a rank. */
static Plan *divided(uint8_t zero, bool per_microbatch) {
  static Graph *g;
  if (g == NULL) g = model_chain(1);
  TestStrategy t = {0};
  strategy_split(&t, "", "MB", 2);
  strategy_place(&t, "", "0,1");
  Directive *x = strategy_replicate(&t, "", "0,1");
  x->zero = zero;
  x->per_microbatch = per_microbatch;
  Plan *p = plans_must(g, &t, (PlanSpec){.batch = 4, .options.single_stream = true});
  strategy_clear(&t);
  return p;
}

static void drop_both(Plan *p, InstrKind kind, uint32_t k) {
  for (int32_t rank = 0; rank < 2; rank++)
    drop(rank_of(p, rank), plans_instr(p, rank, kind, PASS_NONE, k));
}

static void shares(void) {
  Plan *p = divided(ZERO_GRADS, true);
  drop_both(p, INSTR_REDUCE_SCATTER, 1);
  faulty(p,
         "plan: rank 0, norm l0.weight 0-1 (t.lua:3) uses the gradients of l0.weight before they "
         "are summed over their holders");
  p = divided(ZERO_GRADS, true);
  drop_both(p, INSTR_REDUCE_SCATTER, 0);
  faulty(p, "plan: rank 0, reduce_scatter l0.weight 0B1 0-1 (t.lua:3) adds to the gradients of "
            "l0.weight, which nothing has begun");
  p = divided(ZERO_GRADS, true);
  for (int32_t rank = 0; rank < 2; rank++)
    instr(p, rank, INSTR_REDUCE_SCATTER, PASS_NONE, 1)->adds = false;
  faulty(p,
         "plan: rank 0, norm l0.weight 0-1 (t.lua:3) uses the gradients of l0.weight before they "
         "are summed over their holders");
  p = divided(ZERO_GRADS, true);
  instr(p, 1, INSTR_REDUCE_SCATTER, PASS_NONE, 1)->adds = false;
  faulty(p, "plan: rank 0, reduce_scatter l0.weight 0B1 0-1 (t.lua:3) and rank 1, reduce_scatter "
            "l0.weight 0B1 0-1 (t.lua:3), which meet, do different things");
  p = divided(ZERO_OPTIMIZER, false);
  drop_both(p, INSTR_ALL_GATHER, 0);
  faulty(p, "plan: rank 0 ends the step with elements [8, 16) of l0.weight updated 0 times instead "
            "of 1");
  p = divided(ZERO_OPTIMIZER, false);
  drop_both(p, INSTR_REDUCE_SCATTER, 0);
  faulty(p,
         "plan: rank 0, norm l0.weight 0-1 (t.lua:3) uses the gradients of l0.weight before they "
         "are summed over their holders");
  p = divided(ZERO_OPTIMIZER, false);
  drop(rank_of(p, 1), plans_instr(p, 1, INSTR_RUN, PASS_NONE, 5));
  faulty(p, "plan: rank 0 ends the step with elements [8, 16) of l0.weight updated 0 times instead "
            "of 1");
  p = divided(ZERO_PARAMS, false);
  drop_both(p, INSTR_ALL_GATHER, 0);
  faulty(p, "plan: rank 0, 0F0 (m.lua:1) reads gathered parameters of l0.weight, which nothing "
            "writes");
  p = divided(ZERO_OPTIMIZER, false);
  p->shares.at[0].hi--;
  faulty(p, "plan: the shares of rank 0, reduce_scatter l0.weight 0-1 (t.lua:3) do not cover it "
            "once");
  p = divided(ZERO_OPTIMIZER, false);
  p->shares.at[0].hi = 17;
  faulty(p,
         "plan: rank 0, reduce_scatter l0.weight 0-1 (t.lua:3) has a share outside of what it is "
         "about");
  p = divided(ZERO_OPTIMIZER, false);
  instr(p, 0, INSTR_REDUCE_SCATTER, PASS_NONE, 0)->share_first = 99;
  faulty(p, "plan: rank 0, reduce_scatter l0.weight 0-1 (t.lua:3) has no shares");
  p = divided(ZERO_OPTIMIZER, false);
  instr(p, 1, INSTR_REDUCE_SCATTER, PASS_NONE, 0)->part -= 4;
  faulty(p,
         "plan: rank 1, reduce_scatter l0.weight 0-1 (t.lua:3) has its part at the wrong address");
  p = divided(ZERO_GRADS, false);
  const Instr *x = instr(p, 1, INSTR_REDUCE_SCATTER, PASS_NONE, 0);
  rank_of(p, 1)->accesses.at[x->access_first + 1].hi -= 4;
  faulty(p,
         "plan: rank 1, reduce_scatter l0.weight 0-1 (t.lua:3) has the wrong part of gradients of "
         "l0.weight, elements [8, 16)");
  p = divided(ZERO_GRADS, false);
  RankPlan *r = rank_of(p, 1);
  for (uint32_t k = 0; k < r->buffers.n; k++)
    if (r->buffers.at[k].role == BUFFER_STATE || r->buffers.at[k].role == BUFFER_GRADS)
      r->buffers.at[k].lo--;
  faulty(p,
         "plan: rank 1: gradients of l0.weight, elements [7, 16) has elements [7, 16) in 32 bytes "
         "instead of [8, 16) in 32");
  p = divided(ZERO_GRADS, false);
  drop(rank_of(p, 1), plans_instr(p, 1, INSTR_RUN, PASS_NONE, 4));
  faulty(p, "plan: the norm counts element 8 of l0.weight not once");
}

static void ranges(void) {
  Plan *p = pipeline(false);
  Instr *f = instr(p, 0, INSTR_RUN, PASS_F, 0);
  buffer_of(p, 0, f, BUFFER_VALUE)->bytes /= 2;
  faulty(
      p,
      "plan: rank 0, 0F0 (m.lua:1) uses bytes [0, 32) of value l0, samples [0, 2), which has 16");
  p = pipeline(false);
  rank_of(p, 0)->arena_bytes = 224;
  faulty(p,
         "plan: rank 0: input x, samples [0, 2) ends at byte 288, outside the arena of 224 bytes");
  p = pipeline(false);
  buffer_of(p, 0, instr(p, 0, INSTR_RUN, PASS_F, 0), BUFFER_VALUE)->offset = 0;
  resolve(rank_of(p, 0));
  faulty(p, "plan: rank 0: value l0, samples [0, 2) lies on parameters of l0.weight, which lives "
            "through the step");
  p = pipeline(false);
  buffer_of(p, 0, instr(p, 0, INSTR_RUN, PASS_B, 0), BUFFER_GRADS)->offset = 0;
  faulty(p, "plan: rank 0: parameters of l0.weight and gradients of l0.weight overlap");
  p = pipeline(false);
  f = instr(p, 0, INSTR_RUN, PASS_F, 0);
  rank_of(p, 0)->bind_offset.at[f->bind_first] += 4;
  faulty(p, "plan: rank 0, 0F0 (m.lua:1) binds the wrong address: input x, samples [0, 2)");
  p = pipeline(false);
  f = instr(p, 0, INSTR_RUN, PASS_F, 0);
  f->program = instr(p, 0, INSTR_RUN, PASS_B, 0)->program;
  faulty(p, "plan: rank 0, 0F0 (m.lua:1) runs the program of another node");
  p = pipeline(false);
  f = instr(p, 1, INSTR_RUN, PASS_F, 0);
  rank_of(p, 1)->waits.at[f->wait_first] = 5;
  faulty(p, "plan: rank 1, 1F0 (m.lua:2) waits for an instruction that does not come before it");
  p = pipeline(false);
  instr(p, 1, INSTR_RECV, PASS_F, 0)->signals = false;
  faulty(p, "plan: rank 1, 1F0 (m.lua:2) waits for rank 1, recv from 0 of transfer l0 0F0 0>1 "
            "(m.lua:2), which signals nobody");
  p = pipeline(false);
  instr(p, 0, INSTR_RUN, PASS_F, 1)->sample_lo = 0;
  faulty(p, "plan: rank 0, 0F1 (m.lua:1) starts at sample 0 instead of 2");
  p = pipeline(false); /* the two inputs change places */
  Buffer *x = buffer_of(p, 0, instr(p, 0, INSTR_RUN, PASS_F, 0), BUFFER_INPUT);
  Buffer *y = buffer_of(p, 0, instr(p, 0, INSTR_RUN, PASS_F, 1), BUFFER_INPUT);
  x->lo = 2, x->hi = 4, y->lo = 0, y->hi = 2;
  faulty(p, "plan: rank 0, 0F0 (m.lua:1) binds the wrong samples: input x, samples [2, 4)");
  p = pipeline(false);
  instr(p, 0, INSTR_SEND, PASS_F, 0)->peer = 0;
  faulty(p, "plan: rank 0, send to 0 of transfer l0 0F0 0>1 (m.lua:2) has no such peer");
  p = pipeline(false);
  instr(p, 0, INSTR_SEND, PASS_F, 0)->offset += 4;
  faulty(p, "plan: rank 0, send to 1 of transfer l0 0F0 0>1 (m.lua:2) moves other bytes than those "
            "of value l0, samples [0, 2)");
  p = pipeline(false);
  rank_of(p, 0)->scratch_offset += 64;
  faulty(p, "plan: rank 0: the scratch of kernels is not where the plan says");
  p = pipeline(false);
  p->options.threads_per_rank = 2;
  faulty(p, "plan: rank 0, 0F0 (m.lua:1) has no room for its kernels to work in");
  p = pipeline(false);
  instr(p, 0, INSTR_RUN, PASS_F, 1)->stream = instr(p, 0, INSTR_SEND, PASS_F, 0)->stream;
  faulty(p, "plan: rank 0, 0F0 (m.lua:1) and rank 0, 0F1 (m.lua:1) work in the same space, on two "
            "streams");
}

int main(void) {
  right();
  races();
  meetings();
  exchanges();
  updates();
  shares();
  ranges();
  return done_testing();
}
