#include "runtime/hooks.h"

#include "base/hash.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WATCHDOG_SECONDS 60
#define JITTER_MAX_US 200
#define SLEEP_SLICE_NS 1000000u /* how soon a sleeper sees a stop */

/* Reads a number at *s and moves on; false: there is none, or it is out of range. */
static bool read_integer(const char **s, int64_t lo, int64_t hi, int64_t *out) {
  char *end;
  long long v;
  if (!isdigit((unsigned char)**s)) return false;
  errno = 0;
  v = strtoll(*s, &end, 10);
  if (errno != 0 || v < lo || v > hi) return false;
  *s = end;
  *out = v;
  return true;
}

static bool read_seconds(const char **s, double *out) {
  char *end;
  if (!isdigit((unsigned char)**s)) return false;
  *out = strtod(*s, &end);
  *s = end;
  return isfinite(*out) && *out < 1e9;
}

static bool skip_char(const char **s, char c) {
  if (**s != c) return false;
  (*s)++;
  return true;
}

static bool read_jitter(const char *s, Hooks *h) {
  int64_t seed, max_us = JITTER_MAX_US;
  if (!read_integer(&s, 0, INT64_MAX, &seed)) return false;
  if (skip_char(&s, ':') && !read_integer(&s, 0, 10000000, &max_us)) return false;
  h->jitter = true;
  h->jitter_seed = (uint64_t)seed;
  h->jitter_max_us = (uint32_t)max_us;
  return *s == '\0';
}

static bool known_pass(const char *name) {
  for (int i = 1; i < PASS_COUNT; i++) {
    if (strcmp(name, PASS_NAME[i]) == 0) return true;
  }
  for (int i = 1; i < NODE_KIND_COUNT; i++) {
    if (i != NODE_COMPUTE && strcmp(name, NODE_KIND_NAME[i]) == 0) return true;
  }
  return false;
}

static bool read_fault(const char *s, Hooks *h) {
  const size_t n = strcspn(s, ":");
  int64_t rank;
  if (n >= sizeof h->fault_pass) return false;
  memcpy(h->fault_pass, s, n);
  h->fault_pass[n] = '\0';
  s += n;
  if (!known_pass(h->fault_pass) || !skip_char(&s, ':')) return false;
  if (!read_integer(&s, 1, INT64_MAX, &h->fault_step) || !skip_char(&s, ':')) return false;
  if (!read_integer(&s, 0, INT32_MAX, &rank)) return false;
  h->fault = true;
  h->fault_rank = (int32_t)rank;
  h->fault_sleep_seconds = -1;
  if (*s == '\0') return true;
  if (strncmp(s, ":sleep:", 7) != 0) return false;
  s += 7;
  return read_seconds(&s, &h->fault_sleep_seconds) && *s == '\0';
}

PiperStatus hooks_read(Hooks *h, PiperErr *err) {
  const char *v;
  *h = (Hooks){.watchdog_seconds = WATCHDOG_SECONDS};
  v = getenv("PIPER_WATCHDOG");
  if (v != NULL) {
    const char *s = v;
    if (!read_seconds(&s, &h->watchdog_seconds) || *s != '\0') {
      return err_set(err, PIPER_EUSER,
                     "train: PIPER_WATCHDOG is %s: it takes seconds, for example 60, or 0 for no watchdog",
                     err_quoted(v, strlen(v)).text);
    }
  }
  v = getenv("PIPER_JITTER");
  if (v != NULL && !read_jitter(v, h)) {
    return err_set(err, PIPER_EUSER,
                   "train: PIPER_JITTER is %s: it takes <seed>[:<max us>], for example 1:200",
                   err_quoted(v, strlen(v)).text);
  }
  v = getenv("PIPER_FAULT");
  if (v != NULL && !read_fault(v, h)) {
    return err_set(err, PIPER_EUSER,
                   "train: PIPER_FAULT is %s: it takes <pass>:<step>:<rank>[:sleep:<seconds>], for example "
                   "B:3:1; a pass is F, B, BI or BW, or the kind of another node (update, transfer, "
                   "all_reduce, count, norm)", err_quoted(v, strlen(v)).text);
  }
  v = getenv("PIPER_POISON");
  if (v != NULL && strcmp(v, "0") != 0 && strcmp(v, "1") != 0) {
    return err_set(err, PIPER_EUSER, "train: PIPER_POISON is %s: it takes 0 or 1",
                   err_quoted(v, strlen(v)).text);
  }
  h->poison = v != NULL && v[0] == '1';
  return PIPER_OK;
}

/* As PIPER_FAULT calls what node n does. */
static const char *name_of(const Dag *d, uint32_t n) {
  return d->kind[n] == NODE_COMPUTE ? PASS_NAME[d->pass[n]] : NODE_KIND_NAME[d->kind[n]];
}

/* "F, B, transfer, update": in order of first occurrence. */
static void names_of(const Dag *d, const RankPlan *rank, char *buf, size_t size) {
  size_t at = 0;
  buf[0] = '\0';
  for (uint32_t i = 0; i < rank->instrs.n; i++) {
    const char *name = name_of(d, rank->instrs.at[i].node);
    bool seen = false;
    for (uint32_t k = 0; k < i && !seen; k++)
      seen = strcmp(name, name_of(d, rank->instrs.at[k].node)) == 0;
    if (seen) continue;
    const int n = snprintf(buf + at, size - at, "%s%s", at > 0 ? ", " : "", name);
    if (n > 0) at += (size_t)n < size - at ? (size_t)n : size - at - 1;
  }
}

PiperStatus hooks_check_fault(const Hooks *h, const Plan *plan, PiperErr *err) {
  if (!h->fault) return PIPER_OK;
  char names[256];
  for (uint32_t r = 0; r < plan->n_ranks; r++) {
    if (plan->ranks[r].rank != h->fault_rank) continue;
    if (hooks_fault_instr(h, plan, &plan->ranks[r]) != UINT32_MAX) return PIPER_OK;
    names_of(plan->dag, &plan->ranks[r], names, sizeof names);
    return err_set(err, PIPER_EUSER,
                   "train: PIPER_FAULT is about %s, but rank %d of this plan has no such "
                   "instruction: it has %s",
                   h->fault_pass, h->fault_rank, names);
  }
  devsets_text(plan->dag->devsets, plan->world, names, sizeof names);
  return err_set(err, PIPER_EUSER, "train: PIPER_FAULT is about rank %d, but the ranks of this plan are %s",
                 h->fault_rank, names);
}

uint32_t hooks_fault_instr(const Hooks *h, const Plan *plan, const RankPlan *rank) {
  const Dag *d = plan->dag;
  if (!h->fault || rank->rank != h->fault_rank) return UINT32_MAX;
  for (uint32_t i = 0; i < rank->instrs.n; i++) {
    if (strcmp(name_of(d, rank->instrs.at[i].node), h->fault_pass) == 0) return i;
  }
  return UINT32_MAX;
}

static void sleep_ns(uint64_t ns, const atomic_int *stop) {
  while (ns > 0 && atomic_load(stop) == 0) {
    const uint64_t slice = ns < SLEEP_SLICE_NS ? ns : SLEEP_SLICE_NS;
    nanosleep(&(struct timespec){0, (long)slice}, NULL);
    ns -= slice;
  }
}

PiperStatus hooks_before(const Hooks *h, int32_t rank, uint32_t instr, uint32_t fault_instr,
                         int64_t step, const atomic_int *stop, PiperErr *err) {
  if (h->jitter) {
    Hash hash = HASH_START;
    hash_u64(&hash, h->jitter_seed);
    hash_u32(&hash, (uint32_t)rank);
    hash_u32(&hash, instr);
    hash_u64(&hash, (uint64_t)step);
    sleep_ns(hash_end(&hash) % ((uint64_t)h->jitter_max_us + 1) * 1000, stop);
  }
  if (!h->fault || instr != fault_instr || step != h->fault_step) return PIPER_OK;
  if (h->fault_sleep_seconds < 0) {
    return err_set(err, PIPER_EUSER, "failed on demand (PIPER_FAULT)");
  }
  sleep_ns((uint64_t)(h->fault_sleep_seconds * 1e9), stop);
  return PIPER_OK;
}
