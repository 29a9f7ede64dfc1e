#include "runtime/data.h"

#include "base/interrupt.h"
#include "base/rng.h"
#include "base/vec.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef enum SourceKind { SOURCE_TEXT, SOURCE_TABLE, SOURCE_RANDOM } SourceKind;

typedef struct TableInput {
  char *name;
  double *values;
  int64_t per_sample;
} TableInput;

struct DataSource {
  SourceKind kind;
  unsigned char *text; /* TEXT */
  size_t text_bytes;
  int64_t context;
  int64_t n_samples;   /* TEXT: windows of an epoch; TABLE: rows */
  VEC(TableInput) inputs; /* TABLE */
};

static DataSource *source_new(SourceKind kind) {
  DataSource *d = calloc(1, sizeof *d);
  if (d != NULL) d->kind = kind;
  return d;
}

void data_free(DataSource *d) {
  if (d == NULL) return;
  for (size_t i = 0; i < d->inputs.n; i++) {
    free(d->inputs.at[i].name);
    free(d->inputs.at[i].values);
  }
  vec_free(&d->inputs);
  free(d->text);
  free(d);
}

/* ---- text ------------------------------------------------------------------------------------ */

#define READ_AT_ONCE ((size_t)1 << 24) /* Ctrl-C is looked for in between */

static PiperStatus too_long(const char *path, int64_t limit, PiperErr *err) {
  return err_set(err, PIPER_EUSER,
                 "data.text: with \"%s\" the text is longer than %lld MiB, half of the memory available",
                 path, (long long)(limit >> 20));
}

static PiperStatus append_file(DataSource *d, const char *path, int64_t limit, PiperErr *err) {
  struct stat info;
  FILE *f = fopen(path, "rb");
  if (f == NULL)
    return err_set(err, PIPER_EUSER, "data.text: cannot read \"%s\": %s", path, strerror(errno));
  PiperStatus st = PIPER_OK;
  if (fstat(fileno(f), &info) == 0 && S_ISDIR(info.st_mode)) {
    st = err_set(err, PIPER_EUSER, "data.text: \"%s\" is a directory, not a file", path);
    goto done;
  }
  for (size_t cap = d->text_bytes;;) {
    if (interrupt_pending()) {
      st = err_set(err, PIPER_ESTOP, "interrupted");
      break;
    }
    if (d->text_bytes > (size_t)limit) {
      st = too_long(path, limit, err);
      break;
    }
    if (d->text_bytes == cap) {
      cap = cap < 65536 ? 65536 : cap * 2;
      unsigned char *grown = realloc(d->text, cap);
      if (grown == NULL) {
        st = err_nomem(err, "data.text");
        break;
      }
      d->text = grown;
    }
    const size_t room = cap - d->text_bytes;
    const size_t got =
        fread(d->text + d->text_bytes, 1, room < READ_AT_ONCE ? room : READ_AT_ONCE, f);
    d->text_bytes += got;
    if (got == 0) {
      if (ferror(f))
        st = err_set(err, PIPER_EUSER, "data.text: cannot read \"%s\": %s", path, strerror(errno));
      break;
    }
  }
done:
  fclose(f);
  return st;
}

PiperStatus data_text(const char *const *paths, uint32_t n_paths, int64_t context, int64_t limit,
                      DataSource **out, PiperErr *err) {
  DataSource *d = source_new(SOURCE_TEXT);
  if (d == NULL) return err_nomem(err, "data.text");
  PiperStatus st = PIPER_OK;
  for (uint32_t i = 0; i < n_paths && st == PIPER_OK; i++) st = append_file(d, paths[i], limit, err);
  d->context = context;
  d->n_samples = d->text_bytes > 0 ? (int64_t)(d->text_bytes - 1) / context : 0;
  if (st == PIPER_OK && d->text_bytes == 0)
    st = err_set(err, PIPER_EUSER, "data.text: \"%s\"%s is empty", paths[0],
                 n_paths > 1 ? " and the files after it" : "");
  if (st == PIPER_OK && d->n_samples == 0)
    st = err_set(err, PIPER_EUSER,
                 "data.text: the text has %zu bytes; one sample with context = %lld takes %lld",
                 d->text_bytes, (long long)context, (long long)context + 1);
  if (st != PIPER_OK) {
    data_free(d);
    return st;
  }
  *out = d;
  return PIPER_OK;
}

static int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t t = a % b;
    a = b;
    b = t;
  }
  return a;
}

/* The window that sample 'i' shows: in each epoch an affine permutation of the windows, drawn from
 * seed and epoch. */
static int64_t text_window(const DataSource *d, int64_t i, uint64_t seed) {
  const int64_t n = d->n_samples, epoch = i / n;
  const uint64_t key = rng_key("data.text");
  int64_t step = 1 + (int64_t)(rng_uniform(seed, key, 2 * (uint64_t)epoch) * (double)(n - 1));
  while (gcd(step, n) != 1) step++;
  const int64_t start = (int64_t)(rng_uniform(seed, key, 2 * (uint64_t)epoch + 1) * (double)n);
  return (int64_t)(((__int128)step * (i % n) + start) % n);
}

static PiperStatus fill_text(const DataSource *d, const DataRequest *r, int32_t *dst,
                             PiperErr *err) {
  const bool targets = strcmp(r->input, "targets") == 0;
  for (int64_t i = 0; i < r->n; i++) {
    const int64_t at = text_window(d, r->first + i, r->seed) * d->context + (targets ? 1 : 0);
    const unsigned char *from = d->text + at;
    for (int64_t j = 0; j < d->context; j++) {
      if (r->limit > 0 && from[j] >= r->limit)
        return err_set(err, PIPER_EUSER,
                       "data.text: byte %lld of the text is %d; the input \"%s\" runs from 0 to %lld",
                       (long long)(at + j), from[j], r->input, (long long)r->limit - 1);
      dst[i * d->context + j] = from[j];
    }
  }
  return PIPER_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

PiperStatus data_table(int64_t n_samples, DataSource **out, PiperErr *err) {
  if (n_samples < 1) return err_set(err, PIPER_EUSER, "data.table: there are no samples");
  DataSource *d = source_new(SOURCE_TABLE);
  if (d == NULL) return err_nomem(err, "data.table");
  d->n_samples = n_samples;
  *out = d;
  return PIPER_OK;
}

PiperStatus data_table_add(DataSource *d, const char *input, const double *values,
                           int64_t per_sample, PiperErr *err) {
  const size_t n = (size_t)(d->n_samples * per_sample);
  TableInput t = {strdup(input), malloc((n ? n : 1) * sizeof(double)), per_sample};
  if (t.name == NULL || t.values == NULL || !vec_push(&d->inputs, t)) {
    free(t.name);
    free(t.values);
    return err_nomem(err, "data.table");
  }
  memcpy(t.values, values, n * sizeof(double));
  return PIPER_OK;
}

static const TableInput *table_input(const DataSource *d, const char *input) {
  for (size_t i = 0; i < d->inputs.n; i++)
    if (strcmp(d->inputs.at[i].name, input) == 0) return &d->inputs.at[i];
  return NULL;
}

/* ---- all ------------------------------------------------------------------------------------- */

PiperStatus data_random(DataSource **out, PiperErr *err) {
  *out = source_new(SOURCE_RANDOM);
  return *out != NULL ? PIPER_OK : err_nomem(err, "data");
}

int64_t data_per_sample(const DataSource *d, const char *input) {
  switch (d->kind) {
  case SOURCE_TEXT:
    return strcmp(input, "tokens") == 0 || strcmp(input, "targets") == 0 ? d->context : 0;
  case SOURCE_TABLE: {
    const TableInput *t = table_input(d, input);
    return t != NULL ? t->per_sample : 0;
  }
  case SOURCE_RANDOM:
    return -1;
  }
  return 0;
}

int64_t data_samples(const DataSource *d) { return d->n_samples; }

const char *data_name(const DataSource *d) {
  static const char *const NAMES[] = {"text", "table", "random"};
  return NAMES[d->kind];
}

/* Element 'at' of the request's samples, before conversion. */
static double element(const DataSource *d, const DataRequest *r, const TableInput *t, uint64_t key,
                      int64_t at) {
  const int64_t sample = r->first + at / r->per_sample, j = at % r->per_sample;
  if (t != NULL) return t->values[sample % d->n_samples * r->per_sample + j];
  const double u = rng_uniform(r->seed, key, (uint64_t)(sample * r->per_sample + j));
  return r->dtype == DT_I32 ? floor(u * (double)(r->limit > 0 ? r->limit : 2)) : 2 * u - 1;
}

static PiperStatus out_of_range(const DataRequest *r, int64_t sample, double v, PiperErr *err) {
  char besides[32] = "";
  if (r->ignores) snprintf(besides, sizeof besides, ", or is %d", (int)r->ignore);
  return err_set(err, PIPER_EUSER, "data: %s of sample %lld is %g; it runs from 0 to %lld%s",
                 r->input, (long long)sample, v, (long long)r->limit - 1, besides);
}

PiperStatus data_fill(const DataSource *d, const DataRequest *r, void *dst, PiperErr *err) {
  if (d->kind == SOURCE_TEXT) return fill_text(d, r, dst, err);
  const TableInput *t = d->kind == SOURCE_TABLE ? table_input(d, r->input) : NULL;
  const uint64_t key = rng_key(r->input);
  for (int64_t i = 0, n = r->n * r->per_sample; i < n; i++) {
    const double v = element(d, r, t, key, i);
    if (r->dtype == DT_F32) {
      ((float *)dst)[i] = (float)v;
    } else if (r->dtype == DT_F64) {
      ((double *)dst)[i] = v;
    } else {
      if (!(v >= INT32_MIN && v <= INT32_MAX) || floor(v) != v)
        return err_set(err, PIPER_EUSER, "data: %s of sample %lld is %g: the input takes whole numbers",
                       r->input, (long long)(r->first + i / r->per_sample), v);
      if (r->limit > 0 && (v < 0 || v >= (double)r->limit) && !(r->ignores && v == r->ignore))
        return out_of_range(r, r->first + i / r->per_sample, v, err);
      ((int32_t *)dst)[i] = (int32_t)v;
    }
  }
  return PIPER_OK;
}
