#include "runtime/compare.h"

#include <math.h>
#include <stdlib.h>

static PiperStatus fetch(Job *job, ParamId p, CompareWhat what, double *out, PiperErr *err) {
  return what == COMPARE_PARAMS ? job_get_param(job, p, out, err) : job_get_grad(job, p, out, err);
}

static double largest(const double *v, int64_t n) {
  double top = 0;
  for (int64_t i = 0; i < n; i++) top = fmax(top, fabs(v[i]));
  return top;
}

static double farthest(const double *a, const double *b, int64_t n) {
  double top = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = a[i] == b[i] ? 0 : fabs(a[i] - b[i]);
    if (!(d <= top)) top = isnan(d) ? INFINITY : d;
  }
  return top;
}

PiperStatus compare_jobs(const Graph *graph, Job *a, Job *b, CompareWhat what, Difference *out,
                         PiperErr *err) {
  const size_t n_params = graph->params.n;
  int64_t most = 1;
  for (uint32_t p = 1; p < n_params; p++) {
    const int64_t n = shape_elements(&graph->params.at[p].shape, 1);
    if (n > most) most = n;
  }
  double *va = malloc((size_t)most * sizeof *va), *vb = malloc((size_t)most * sizeof *vb);
  double *scale = calloc(n_params, sizeof *scale), *apart = calloc(n_params, sizeof *apart);
  PiperStatus st = PIPER_OK;
  if (va == NULL || vb == NULL || scale == NULL || apart == NULL) st = err_nomem(err, "compare");
  double model = 0;
  for (uint32_t p = 1; p < n_params && st == PIPER_OK; p++) {
    const int64_t n = shape_elements(&graph->params.at[p].shape, 1);
    if ((st = fetch(a, (ParamId){p}, what, va, err)) != PIPER_OK) break;
    if ((st = fetch(b, (ParamId){p}, what, vb, err)) != PIPER_OK) break;
    scale[p] = largest(vb, n);
    apart[p] = farthest(va, vb, n);
    model = fmax(model, scale[p]);
  }
  *out = (Difference){0};
  for (uint32_t p = 1; p < n_params && st == PIPER_OK; p++) {
    const double base = fmax(scale[p], 1e-3 * model);
    const double relative = apart[p] == 0 ? 0 : apart[p] / base; /* base 0: infinite */
    if (relative > out->worst) *out = (Difference){relative, {p}};
  }
  free(va);
  free(vb);
  free(scale);
  free(apart);
  return st;
}
