/* bind_shape.h - shapes as scripts write them: { "batch", 128 }, { { "batch", 2 }, 96 }, {}. */
#ifndef PIPER_BIND_BIND_SHAPE_H
#define PIPER_BIND_BIND_SHAPE_H

#include <lua.h>

#include "ir/shape.h"

/* Raises with a message that begins with 'what'. Sizes are checked where the shape is used. */
void bind_read_shape(lua_State *L, int idx, const char *what, Shape *out);
void bind_push_shape(lua_State *L, const Shape *s);

#endif
