#include "runtime/data.h"

#include "base/bytes.h"
#include "base/interrupt.h"
#include "base/rng.h"
#include "base/vec.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum SourceKind { SOURCE_TEXT, SOURCE_TOKENS, SOURCE_TABLE, SOURCE_RANDOM } SourceKind;

typedef struct TableInput {
  char *name;
  double *values;
  int64_t per_sample;
} TableInput;

struct DataSource {
  SourceKind kind;
  unsigned char *text; /* TEXT */
  size_t text_bytes;
  int fd;              /* TOKENS */
  char *path;          /* TOKENS */
  uint32_t id_bytes;   /* TOKENS: 2, 4 */
  int64_t context;     /* TEXT, TOKENS */
  int64_t n_samples;   /* TEXT, TOKENS: windows of an epoch; TABLE: rows */
  VEC(TableInput) inputs; /* TABLE */
};

static DataSource *source_new(SourceKind kind) {
  DataSource *d = calloc(1, sizeof *d);
  if (d != NULL) d->kind = kind, d->fd = -1;
  return d;
}

void data_free(DataSource *d) {
  if (d == NULL) return;
  for (size_t i = 0; i < d->inputs.n; i++) {
    free(d->inputs.at[i].name);
    free(d->inputs.at[i].values);
  }
  vec_free(&d->inputs);
  if (d->fd >= 0) close(d->fd);
  free(d->path);
  free(d->text);
  free(d);
}

/* ---- text ------------------------------------------------------------------------------------ */

#define READ_AT_ONCE ((size_t)1 << 24) /* Ctrl-C is looked for in between */

static PiperStatus too_long(const char *path, int64_t limit, PiperErr *err) {
  return err_set(err, PIPER_EUSER,
                 "data.text: with \"%s\" the text is longer than %s, half of the memory available",
                 path, bytes_text((uint64_t)limit).text);
}

static PiperStatus append_file(DataSource *d, const char *path, int64_t limit, PiperErr *err) {
  struct stat info;
  /* Before it is opened: a device need not end, and some act on being opened. A pipe ends with
   * its writers. */
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode))
    return err_set(err, PIPER_EUSER, "data.text: \"%s\" is %s, not a file", path,
                   S_ISDIR(info.st_mode)    ? "a directory"
                   : S_ISSOCK(info.st_mode) ? "a socket"
                                            : "a device");
  FILE *f = fopen(path, "rb");
  if (f == NULL)
    return err_set(err, PIPER_EUSER, "data.text: cannot read \"%s\": %s", path, strerror(errno));
  PiperStatus st = PIPER_OK;
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
 * seed and epoch. The same for bytes and for a file with as many ids. */
static int64_t window_of(const DataSource *d, int64_t i, uint64_t seed) {
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
    const int64_t at = window_of(d, r->first + i, r->seed) * d->context + (targets ? 1 : 0);
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

/* ---- files of ids ------------------------------------------------------------------------------
 *
 * Read window by window, from where the system keeps what was read before; a map of the file would end
 * the process where the file gets shorter or its disk fails, and here that is an error. */

static PiperStatus open_tokens(DataSource *d, PiperErr *err) {
  struct stat info;
  d->fd = open(d->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (d->fd < 0 || fstat(d->fd, &info) != 0)
    return err_set(err, PIPER_EUSER, "data.tokens: cannot read \"%s\": %s", d->path,
                   strerror(errno));
  if (!S_ISREG(info.st_mode))
    return err_set(err, PIPER_EUSER, "data.tokens: \"%s\" is %s, not a file", d->path,
                   S_ISDIR(info.st_mode) ? "a directory" : "a pipe or a device");
  if (info.st_size == 0)
    return err_set(err, PIPER_EUSER, "data.tokens: \"%s\" is empty", d->path);
  if (info.st_size % d->id_bytes != 0)
    return err_set(err, PIPER_EUSER,
                   "data.tokens: \"%s\" has %lld bytes, which are no ids of %u bits each", d->path,
                   (long long)info.st_size, 8 * d->id_bytes);
  const int64_t n_ids = info.st_size / d->id_bytes;
  d->n_samples = (n_ids - 1) / d->context;
  if (d->n_samples > 0) return PIPER_OK;
  return err_set(err, PIPER_EUSER,
                 "data.tokens: \"%s\" has %lld ids; one sample with context = %lld takes %lld",
                 d->path, (long long)n_ids, (long long)d->context, (long long)d->context + 1);
}

PiperStatus data_tokens(const char *path, uint32_t width, int64_t context, DataSource **out,
                        PiperErr *err) {
  DataSource *d = source_new(SOURCE_TOKENS);
  if (d == NULL || (d->path = strdup(path)) == NULL) {
    data_free(d);
    return err_nomem(err, "data.tokens");
  }
  d->id_bytes = width / 8;
  d->context = context;
  const PiperStatus st = open_tokens(d, err);
  if (st != PIPER_OK) {
    data_free(d);
    return st;
  }
  *out = d;
  return PIPER_OK;
}

/* Ids at .. at + n - 1, as they lie in the file. */
static PiperStatus read_ids(const DataSource *d, int64_t at, int64_t n, unsigned char *to,
                            PiperErr *err) {
  const size_t bytes = (size_t)n * d->id_bytes;
  for (size_t done = 0; done < bytes;) {
    const ssize_t got =
        pread(d->fd, to + done, bytes - done, (off_t)at * d->id_bytes + (off_t)done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return err_set(err, PIPER_EUSER, "data.tokens: cannot read \"%s\": %s", d->path,
                     strerror(errno));
    if (got == 0)
      return err_set(err, PIPER_EUSER,
                     "data.tokens: \"%s\" has become shorter: id %lld is not there any more",
                     d->path, (long long)(at + (int64_t)(done / d->id_bytes)));
    done += (size_t)got;
  }
  return PIPER_OK;
}

static PiperStatus fill_tokens(const DataSource *d, const DataRequest *r, int32_t *dst,
                               PiperErr *err) {
  const bool targets = strcmp(r->input, "targets") == 0;
  const int64_t limit = r->limit > 0 ? r->limit : INT32_MAX;
  for (int64_t i = 0; i < r->n; i++, dst += d->context) {
    const int64_t at = window_of(d, r->first + i, r->seed) * d->context + (targets ? 1 : 0);
    /* At the end of the row, so that widening from the front never writes over what is to be read. */
    const unsigned char *from = (unsigned char *)(dst + d->context) - d->context * d->id_bytes;
    TRY(read_ids(d, at, d->context, (unsigned char *)from, err));
    for (int64_t j = 0; j < d->context; j++, from += d->id_bytes) {
      uint32_t id = from[0] | (uint32_t)from[1] << 8;
      if (d->id_bytes == 4) id |= (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
      if (id >= limit)
        return err_set(err, PIPER_EUSER,
                       "data.tokens: id %lld of \"%s\" is %lu; the input \"%s\" runs from 0 to %lld",
                       (long long)(at + j), d->path, (unsigned long)id, r->input,
                       (long long)limit - 1);
      dst[j] = (int32_t)id;
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
  case SOURCE_TOKENS:
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

bool data_is_ids(const DataSource *d) {
  return d->kind == SOURCE_TEXT || d->kind == SOURCE_TOKENS;
}

int64_t data_samples(const DataSource *d) { return d->n_samples; }

const char *data_name(const DataSource *d) {
  static const char *const NAMES[] = {"text", "tokens", "table", "random"};
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
  if (d->kind == SOURCE_TOKENS) return fill_tokens(d, r, dst, err);
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
