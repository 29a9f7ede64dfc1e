/* The table of passes, and the loop that runs it. */
#include "passes/pipeline.h"

#include "base/interrupt.h"
#include "ir/dag_draw.h"
#include "ir/dag_text.h"
#include "ir/dag_verify.h"
#include "passes/pass.h"

#include <assert.h>
#include <string.h>

/* What holds of a DAG between passes: the stages that dag_verify knows, and what ends with a
 * pass. */
enum {
  BUILT = DAG_BUILT,
  PLACED = DAG_PLACED,
  BUCKETED = DAG_BUCKETED,
  ORDERED = DAG_ORDERED,
  COUNTED = DAG_COUNTED,
  GATHERED = DAG_GATHERED,
  STAGES = BUILT | PLACED | BUCKETED | ORDERED | COUNTED | GATHERED,
  ONLY_COMPUTE = 1 << 8, /* no transfer, reduction or update yet */
  FUSED = 1 << 9,        /* every backward is one B */
};

static const struct Row {
  const char *name;
  PassRun *run;
  unsigned needs, breaks, gives;
} PASSES[] = {
    /* clang-format off */
    {"build",          pass_build,          0,                            0,            BUILT | ONLY_COMPUTE | FUSED},
    {"split",          pass_split,          BUILT | ONLY_COMPUTE | FUSED, 0,            0},
    {"split_backward", pass_split_backward, BUILT | ONLY_COMPUTE | FUSED, FUSED,        0},
    {"recompute",      pass_recompute,      BUILT | ONLY_COMPUTE,         0,            0},
    {"place",          pass_place,          BUILT | ONLY_COMPUTE,         ONLY_COMPUTE, PLACED},
    {"shard",          pass_shard,          PLACED,                       ONLY_COMPUTE, 0},
    {"replicate",      pass_replicate,      PLACED,                       ONLY_COMPUTE, BUCKETED},
    {"count",          pass_count,          PLACED,                       ONLY_COMPUTE, COUNTED},
    {"order",          pass_order,          PLACED,                       0,            ORDERED},
    {"zero",           pass_zero,           BUCKETED | ORDERED,           0,            GATHERED},
    /* clang-format on */
};
enum { N_PASSES = sizeof PASSES / sizeof PASSES[0] };

const char *passes_name(uint32_t i) { return i < N_PASSES ? PASSES[i].name : NULL; }

static PiperStatus check_dump_name(const char *name, const UserPasses *user, PiperErr *err) {
  char known[512] = "";
  if (name == NULL) return PIPER_OK;
  const uint32_t n = N_PASSES + user->n;
  for (uint32_t i = 0; i < n; i++) {
    const char *pass = i < N_PASSES ? PASSES[i].name : user->at[i - N_PASSES].name;
    if (strcmp(pass, name) == 0) return PIPER_OK;
    if (strlen(known) + strlen(pass) + 3 > sizeof known) continue; /* not all of very many */
    if (i > 0) strcat(known, ", ");
    strcat(known, pass);
  }
  return err_set(err, PIPER_EUSER, "there is no pass \"%s\" to dump after; the passes are %s", name,
                 known);
}

static PiperStatus dump_after(const Dag *d, const char *pass, const PassOptions *opt,
                              PiperErr *err) {
  if (opt->dump_after == NULL || strcmp(opt->dump_after, pass) != 0) return PIPER_OK;
  PiperErr found = {0};
  PiperStatus st;
  switch (opt->dump_form) {
  case DUMP_LIST:
    return dag_list(d, NULL, 0, opt->dump, err);
  case DUMP_DOT:
    st = dag_dot(d, opt->dump_filter, opt->dump, &found);
    return st == PIPER_OK ? st : err_set(err, st, "dot: %s", found.text);
  case DUMP_TEXT:
    break;
  }
  return dag_print(d, opt->dump, err);
}

/* The user's passes behind a built-in one. */
static PiperStatus run_user(Dag *d, const Strategy *s, const char *after, unsigned stages,
                            const PassOptions *opt, PiperErr *err) {
  for (uint32_t i = 0; i < opt->user.n; i++) {
    const UserPass *pass = &opt->user.at[i];
    if (strcmp(pass->after, after) != 0) continue;
    DagEdit *edit;
    PiperErr found = {0};
    TRY(dag_edit_new(d, s, stages, &edit, err));
    PiperStatus st = opt->user.run(opt->user.context, i, edit, err);
    dag_edit_free(edit);
    TRY(st);
    st = dag_verify(d, stages, &found);
    if (st == PIPER_EBUG)
      return err_set(err, PIPER_EUSER, "%s: pass \"%s\" leaves a DAG that is not right: %s",
                     pass->line, pass->name, found.text);
    if (st != PIPER_OK) return err_set(err, st, "%s", found.text);
    TRY(dump_after(d, pass->name, opt, err));
  }
  return PIPER_OK;
}

PiperStatus passes_run(const Graph *g, int64_t batch, const Strategy *s, const PassOptions *opt,
                       Dag **out, PiperErr *err) {
  assert(g->cut);
  if (batch < 1)
    return err_set(err, PIPER_EUSER, "batch is %lld; it has to be at least 1", (long long)batch);
  TRY(check_dump_name(opt->dump_after, &opt->user, err));
  if (!opt->forward_only) TRY(schedule_stages(g, s, err)); /* training has said it */
  Arena *scratch = opt->forward_only ? arena_new() : NULL;
  Strategy forward;
  Dag *d = dag_new(g, batch);
  unsigned facts = 0;
  PiperStatus st = d == NULL || (opt->forward_only && scratch == NULL)
                       ? err_nomem(err, "the training DAG")
                       : PIPER_OK;
  if (st == PIPER_OK && opt->forward_only) {
    d->forward_only = true;
    st = strategy_forward(s, scratch, &forward, err);
    s = &forward;
  }
  for (int i = 0; st == PIPER_OK && i < N_PASSES; i++) {
    const struct Row *row = &PASSES[i];
    assert((facts & row->needs) == row->needs);
    st = interrupt_check(err);
    if (st == PIPER_OK) st = row->run(d, s, opt, err);
    facts = (facts & ~row->breaks) | row->gives;
    if (st == PIPER_OK && opt->verify) {
      PiperErr found = {0};
      st = dag_verify(d, facts & STAGES, &found);
      if (st != PIPER_OK) err_set(err, st, "after pass %s: %s", row->name, found.text);
    }
    if (st == PIPER_OK) st = dump_after(d, row->name, opt, err);
    if (st == PIPER_OK) st = run_user(d, s, row->name, facts & STAGES, opt, err);
  }
  arena_free(scratch);
  if (st != PIPER_OK) {
    dag_free(d);
    return st;
  }
  *out = d;
  return PIPER_OK;
}
