/* data.h - where a run's samples come from.
 *
 * A source is an endless list of samples, numbered from 0; step n of a run (from 1) with batch B
 * reads samples (n-1)*B .. n*B-1. Read-only after it was made: any thread may call data_fill. */
#ifndef PIPER_RUNTIME_DATA_H
#define PIPER_RUNTIME_DATA_H

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct DataSource DataSource;

/* Bytes of files, one after the other, as the inputs "tokens" and "targets", i32 [context] a
 * sample; a target is the byte after its token. Windows of 'context' bytes do not overlap and are
 * visited in a new order each epoch, which depends on the seed and the epoch only. An error when a
 * file cannot be read, or all of them together are shorter than one sample (context + 1 bytes) or
 * longer than 'limit' bytes. Ctrl-C ends it. */
PiperStatus data_text(const char *const *paths, uint32_t n_paths, int64_t context, int64_t limit,
                      DataSource **out, PiperErr *err);

/* Likewise, ids instead of bytes: a flat file of little-endian unsigned numbers of 'width' bits (16 or
 * 32), as large as it likes. It is read while samples are made, and must not change meanwhile. */
PiperStatus data_tokens(const char *path, uint32_t width, int64_t context, DataSource **out,
                        PiperErr *err);

/* Values given in full, used in order and from the start again. data_table makes a source for
 * 'n_samples' samples, data_table_add copies one input: n_samples * per_sample values. */
PiperStatus data_table(int64_t n_samples, DataSource **out, PiperErr *err);
PiperStatus data_table_add(DataSource *d, const char *input, const double *values,
                           int64_t per_sample, PiperErr *err);

/* Uniform noise for any input: floats in [-1, 1), integers in [0, limit) of their input. */
PiperStatus data_random(DataSource **out, PiperErr *err);

void data_free(DataSource *d); /* NULL is fine */

/* Values a sample of 'input'; 0: the source has no such input; -1: as many as asked for. */
int64_t data_per_sample(const DataSource *d, const char *input);
int64_t data_samples(const DataSource *d); /* before it starts again; 0: never */
const char *data_name(const DataSource *d); /* "text", "tokens", "table", "random" */
bool data_is_ids(const DataSource *d);      /* its inputs are i32 */

typedef struct DataRequest {
  const char *input;
  DType dtype;         /* DT_F32, DT_F64 or DT_I32 */
  int64_t per_sample;  /* as data_per_sample says */
  int64_t limit;       /* integers: exclusive upper bound; 0: none */
  bool ignores;        /* integers: 'ignore' may occur besides */
  int32_t ignore;
  int64_t first, n;    /* samples first .. first + n - 1 */
  uint64_t seed;
} DataRequest;

/* Writes n * per_sample elements to 'dst'. An integer that is not whole or outside [0, limit) that
 * may not occur besides is an error naming sample and input. */
PiperStatus data_fill(const DataSource *d, const DataRequest *r, void *dst, PiperErr *err);

#endif
