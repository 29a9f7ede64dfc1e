#include "ir/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

PiperStatus shape_check(const Shape *s, const char *what, PiperErr *err) {
  if (s->rank > SHAPE_MAX_RANK)
    return err_set(err, PIPER_EUSER, "%s: %d axes; there can be %d", what, s->rank, SHAPE_MAX_RANK);
  int64_t elements = 1;
  for (int i = 0; i < s->rank; i++) {
    if (s->dim[i] < 1)
      return err_set(err, PIPER_EUSER, "%s: axis %d is %" PRId64 "; it must be at least 1", what, i,
                     s->dim[i]);
    if (s->dim[i] > SHAPE_MAX_ELEMENTS / elements) {
      char text[128];
      shape_text(s, text, sizeof text);
      return err_set(err, PIPER_EUSER, "%s: %s has more than 2^48 elements", what, text);
    }
    elements *= s->dim[i];
  }
  return PIPER_OK;
}

bool shape_equal(const Shape *a, const Shape *b) {
  if (a->rank != b->rank || a->batched != b->batched) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->dim[i] != b->dim[i]) return false;
  return true;
}

void shape_dim_text(const Shape *s, int axis, char *buf, size_t n) {
  if (!s->batched || axis > 0) snprintf(buf, n, "%" PRId64, s->dim[axis]);
  else if (s->dim[0] == 1) snprintf(buf, n, "batch");
  else snprintf(buf, n, "batch*%" PRId64, s->dim[0]);
}

void shape_text(const Shape *s, char *buf, size_t n) {
  if (s->rank == 0) {
    snprintf(buf, n, "scalar");
    return;
  }
  char text[SHAPE_MAX_RANK * 32] = "";
  for (int i = 0; i < s->rank; i++) {
    const size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "%s", i > 0 ? ", " : "");
    shape_dim_text(s, i, text + strlen(text), sizeof text - strlen(text));
  }
  snprintf(buf, n, "[%s]", text);
}

int64_t shape_elements_per_sample(const Shape *s) {
  int64_t elements = 1;
  for (int i = 0; i < s->rank; i++) elements *= s->dim[i];
  return elements;
}

int64_t shape_elements(const Shape *s, int64_t samples) {
  const int64_t each = shape_elements_per_sample(s);
  if (!s->batched) return each;
  if (samples != 0 && each > INT64_MAX / samples) return -1;
  return each * samples;
}
