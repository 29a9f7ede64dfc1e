/* team.h - the threads that compute for one stream: its own thread and workers that help it.
 *
 * Only the stream's thread calls team_run; in between workers spin, and park after a while, so a team
 * costs nothing while its rank waits. */
#ifndef PIPER_DEVICE_TEAM_H
#define PIPER_DEVICE_TEAM_H

#include "device/threads.h"

typedef struct Team Team;

/* n_threads >= 1, the caller of team_run included: so one fewer are started. They count in 'crowd',
 * which outlives the team. 'name' is that of the threads (threads.h). */
PiperStatus team_new(uint32_t n_threads, Crowd *crowd, const char *name, Team **out, PiperErr *err);
/* Joins them. No team_run is under way. NULL is fine. */
void team_free(Team *team);

/* 1 for NULL, which is the calling thread alone. */
uint32_t team_threads(const Team *team);

/* Piece i of a run, on thread i % team_threads; thread 0 is the caller of team_run. */
typedef void TeamPiece(void *arg, uint32_t piece, uint32_t thread);

/* Returns when all pieces are done. A piece may not call team_run. */
void team_run(Team *team, uint32_t n_pieces, TeamPiece *piece, void *arg);

#endif
