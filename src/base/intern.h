/* intern.h - strings to small ids and back. Ids start at 1 and count up in order of first use, so
 * they are the same in every process that interns the same strings in the same order. */
#ifndef PIPER_BASE_INTERN_H
#define PIPER_BASE_INTERN_H

#include <stdint.h>

typedef struct Intern Intern;

Intern *intern_new(void);                             /* NULL: out of memory */
void intern_free(Intern *t);                          /* NULL is fine */
uint32_t intern_id(Intern *t, const char *s);         /* adds it if new; 0: out of memory */
uint32_t intern_find(const Intern *t, const char *s); /* 0: not there */
const char *intern_text(const Intern *t, uint32_t id); /* id 0: ""; good as long as the table */
uint32_t intern_count(const Intern *t);

#endif
