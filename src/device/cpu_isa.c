#include "device/cpu_isa.h"

#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PIPER_KERNEL_X86
static int runs_v4(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

static int runs_v3(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#else
static int runs_generic(void) { return 1; }
#endif

static const struct {
  const KernelTable *table;
  int (*runs)(void);
} TABLES[] = {
#ifdef PIPER_KERNEL_X86
    {&kernel_table_v4, runs_v4},
    {&kernel_table_v3, runs_v3},
#else
    {&kernel_table_generic, runs_generic},
#endif
};
#define N_TABLES ((int)(sizeof TABLES / sizeof *TABLES))

const KernelTable *cpu_isa_at(int i, int *runs) {
  if (i < 0 || i >= N_TABLES) return NULL;
  if (runs != NULL) *runs = TABLES[i].runs();
  return TABLES[i].table;
}

PiperStatus cpu_isa_select(const KernelTable **out, PiperErr *err) {
  const char *wanted = getenv("PIPER_ISA");
  char names[64] = "";
  for (int i = 0; i < N_TABLES; i++) {
    const KernelTable *table = TABLES[i].table;
    if (wanted == NULL) {
      if (TABLES[i].runs()) {
        *out = table;
        return PIPER_OK;
      }
    } else if (strcmp(wanted, table->isa) == 0) {
      if (!TABLES[i].runs())
        return err_set(err, PIPER_EUSER, "train: PIPER_ISA is %s: this processor lacks its instructions",
                       err_quoted(wanted, strlen(wanted)).text);
      *out = table;
      return PIPER_OK;
    }
    const size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", table->isa);
  }
  if (wanted != NULL)
    return err_set(err, PIPER_EUSER, "train: PIPER_ISA is %s: there are kernels for %s",
                   err_quoted(wanted, strlen(wanted)).text, names);
  return err_set(err, PIPER_EUSER, "this processor is too old: kernels need AVX2 and FMA (x86-64-v3)");
}
