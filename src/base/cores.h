/* cores.h - how many processors this program may use. */
#ifndef PIPER_BASE_CORES_H
#define PIPER_BASE_CORES_H

int cores_available(void); /* >= 1; fewer than the machine has where it is confined to some of them */

#endif
