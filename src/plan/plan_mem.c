/* plan_mem - an offset for every buffer, each rank alone.
 *
 * What lives through the whole step comes first. The other buffers are placed in the order of their
 * first use and freed after their last one, both in the order of the rank's list. The most that is
 * alive at once is known beforehand; that much space is there from the start, and the arena grows
 * beyond it only when its free space is in pieces.
 *
 * Reusing space is safe when all accesses of the buffers that had these bytes before are complete.
 * Only the last of them on each stream and the first of the new buffer on each stream matter, and
 * only the latest owner of each byte: the first access of that owner was after the owner before it.
 * Where the streams do not order them already, the new buffer's access waits.
 *
 * Such a wait costs time when it is for something that is still under way: the list says in which
 * order instructions start, not when they end, so a transfer would wait for the computation that it
 * should run beside. Therefore free space is preferred that nobody uses any more by then, as the virtual
 * time of the global order has it (where that is not known: that the latest RUN and what follows it in
 * the list have not used), then what fits closely, then what has been free for long; and there is space
 * for one more buffer on each stream that receives, exchanges or gathers. Compute that would wait for
 * communication all the same makes the arena grow, by a sixteenth of what is alive at once in all.
 * (1F1B on 2 to 8 ranks, transfers between a tenth of a forward pass and one and a half: at most 0.8%
 * longer than with no reuse at all; without the space for what is received up to 3%, with space taken
 * just as it fits up to 7%. Ten schedules, dense and with experts, on 4 and 8 ranks: 0.2% longer in the
 * mean and 2.0% at worst; without virtual time and growth 0.6% and 4.1%, in 2.6% less memory. But of
 * overlapped pairs with many small exchanges it was 10%, and most of what should have been hidden was
 * not; it is 0.2% now.)
 *
 * Where pieces make the arena grow beyond all that, buffers are placed by size, largest first, each at
 * the lowest place that is free throughout its life, which lasts until its uses have ended in virtual
 * time: then nothing waits. (ZeRO-3 with gathers of a layer each: 64% of them hidden instead of 16%.)
 * Where that is not small enough, either, or above the limit, two other ways are tried, without regard to
 * time, and the smallest arena stays: the closest fit, and by size with lives by the list. Both by size
 * only where there are not too many buffers. (Layers of random widths: the arena is 4% larger than what
 * is alive at once in the mean and 50% at worst in the order of first use, 1.5% and 15% by size.)
 *
 * Buffers that only one instruction uses, mostly workspaces, are placed at the upper end: between
 * long-lived ones they would leave holes, there they take each other's place.
 *
 * Free space is kept in pieces that are as large as can be, in lists by size class (four for each
 * power of two), so that placing takes the same time however many buffers are alive. */
#include "plan/plan_lower.h"

#include "plan/clock.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define ALIGN 64
#define SPARE 16         /* of the bytes alive at once this part more, so that compute need not wait */
#define N_BINS 256
#define MAX_TRIED 32     /* pieces looked at for one buffer */
#define MAX_BY_SIZE 2048 /* buffers of a rank that are placed by size: the time is quadratic */

/* Bytes [lo, hi) with one history; neighbours by address. A free one belongs to a piece of free
 * space, which is known at the piece's first and last segment. */
typedef struct Segment {
  uint64_t lo, hi;
  uint32_t owner;      /* buffer that has or had it last; NONE: nobody yet */
  uint32_t prev, next; /* NONE */
  uint32_t piece;
  bool live;
} Segment;

typedef struct Piece {
  uint64_t lo, hi;
  uint32_t first, last; /* segments */
  uint32_t prev, next;  /* in its bin */
  uint32_t bin;
} Piece;

typedef struct Link { /* a list of a buffer: owners before it, or its accesses so far */
  uint32_t next;
  uint32_t stream; /* accesses */
  uint32_t what;   /* buffer, or instruction */
} Link;

typedef enum Policy {
  AVOID_WAITS,
  AVOID_GROWTH,
  BY_SIZE, /* the offsets are there already: no pieces, only segments with their owners */
} Policy;

typedef struct Mem {
  RankPlan *rank;
  Policy policy;
  VEC(Segment) segments;
  VEC(Piece) pieces;
  U32Vec spare_segments, spare_pieces;
  uint32_t bins[N_BINS];
  uint64_t filled[N_BINS / 64];
  uint32_t tail; /* segment at the upper end */
  VEC(Link) links;
  uint32_t *before;  /* by buffer: Link list of the owners before it */
  uint32_t *seen;    /* by buffer: Link list, its last access on each stream so far */
  uint32_t *segment; /* by buffer, while it is alive; NONE */
  const double *start, *seconds; /* by node: when it starts and how long it takes in virtual time; NULL:
                                    not known */
  uint64_t spare;    /* bytes that the arena may still grow so that compute does not wait */
  double tiny;       /* differences of rounding */
  uint32_t recent;   /* 1 + the latest RUN; 0: none yet */
  Clocks clocks;
  Deps deps;
  /* The result of one try. */
  uint64_t *offset; /* by buffer */
  uint64_t end;
  U32Vec waits, wait_first; /* by instruction, and the end */
  uint32_t waits_added;
} Mem;

static uint64_t aligned(uint64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* ---- free space ------------------------------------------------------------------------------ */

static uint32_t bin_of(uint64_t size) {
  const uint64_t n = size / ALIGN;
  if (n < 4) return (uint32_t)n;
  uint32_t log = 63;
  while ((n >> log) == 0) log--;
  return 4 * (log - 1) + (uint32_t)(n >> (log - 2) & 3);
}

static void bin_add(Mem *m, uint32_t p) {
  Piece *x = &m->pieces.at[p];
  x->bin = bin_of(x->hi - x->lo);
  x->prev = NONE;
  x->next = m->bins[x->bin];
  if (x->next != NONE) m->pieces.at[x->next].prev = p;
  m->bins[x->bin] = p;
  m->filled[x->bin / 64] |= UINT64_C(1) << (x->bin % 64);
}

static void bin_remove(Mem *m, uint32_t p) {
  const Piece *x = &m->pieces.at[p];
  if (x->next != NONE) m->pieces.at[x->next].prev = x->prev;
  if (x->prev != NONE) m->pieces.at[x->prev].next = x->next;
  else m->bins[x->bin] = x->next;
  if (m->bins[x->bin] == NONE) m->filled[x->bin / 64] &= ~(UINT64_C(1) << (x->bin % 64));
}

/* The first bin from 'bin' on that has a piece; N_BINS: none. */
static uint32_t bin_filled(const Mem *m, uint32_t bin) {
  for (; bin < N_BINS; bin = (bin / 64 + 1) * 64) {
    uint64_t word = m->filled[bin / 64] >> (bin % 64);
    if (word == 0) continue;
    while ((word & 1) == 0) word >>= 1, bin++;
    return bin;
  }
  return N_BINS;
}

/* NONE: out of memory. Room in the spare lists is made here, so that giving back cannot fail. */
static uint32_t new_segment(Mem *m) {
  if (m->spare_segments.n > 0) return m->spare_segments.at[--m->spare_segments.n];
  if (!vec_push(&m->segments, (Segment){0}) ||
      !vec_reserve(&m->spare_segments, m->segments.n - m->spare_segments.n))
    return NONE;
  return (uint32_t)m->segments.n - 1;
}

static uint32_t new_piece(Mem *m) {
  if (m->spare_pieces.n > 0) return m->spare_pieces.at[--m->spare_pieces.n];
  if (!vec_push(&m->pieces, (Piece){0}) ||
      !vec_reserve(&m->spare_pieces, m->pieces.n - m->spare_pieces.n))
    return NONE;
  return (uint32_t)m->pieces.n - 1;
}

static void spare_segment(Mem *m, uint32_t s) {
  const Segment *x = &m->segments.at[s];
  if (x->prev != NONE) m->segments.at[x->prev].next = x->next;
  if (x->next != NONE) m->segments.at[x->next].prev = x->prev;
  else m->tail = x->prev;
  m->spare_segments.at[m->spare_segments.n++] = s;
}

static void spare_piece(Mem *m, uint32_t p) { m->spare_pieces.at[m->spare_pieces.n++] = p; }

/* A new segment between two neighbours. */
static uint32_t insert_segment(Mem *m, Segment x) {
  const uint32_t s = new_segment(m);
  if (s == NONE) return NONE;
  m->segments.at[s] = x;
  if (x.prev != NONE) m->segments.at[x.prev].next = s;
  if (x.next != NONE) m->segments.at[x.next].prev = s;
  else m->tail = s;
  return s;
}

/* Free space of 'size' more bytes at the upper end. */
static bool grow(Mem *m, uint64_t base, uint64_t size) {
  const uint64_t lo = m->tail != NONE ? m->segments.at[m->tail].hi : base;
  uint32_t p = NONE;
  if (m->tail != NONE && !m->segments.at[m->tail].live) {
    p = m->segments.at[m->tail].piece;
    bin_remove(m, p);
  }
  const uint32_t s = insert_segment(
      m, (Segment){.lo = lo, .hi = lo + size, .owner = NONE, .prev = m->tail, .next = NONE});
  if (s == NONE) return false;
  if (p == NONE) {
    p = new_piece(m);
    if (p == NONE) return false;
    m->pieces.at[p] = (Piece){.lo = lo, .first = s};
  }
  Piece *x = &m->pieces.at[p];
  x->hi = lo + size;
  x->last = s;
  m->segments.at[s].piece = p;
  bin_add(m, p);
  return true;
}

static void release(Mem *m, uint32_t buffer) {
  const uint32_t s = m->segment[buffer];
  Segment *x = &m->segments.at[s];
  m->segment[buffer] = NONE;
  x->live = false;
  if (m->policy == BY_SIZE) return;
  uint32_t p = NONE;
  if (x->prev != NONE && !m->segments.at[x->prev].live) {
    p = m->segments.at[x->prev].piece;
    bin_remove(m, p);
    m->pieces.at[p].hi = x->hi;
    m->pieces.at[p].last = s;
  }
  if (x->next != NONE && !m->segments.at[x->next].live) {
    const uint32_t q = m->segments.at[x->next].piece;
    bin_remove(m, q);
    if (p == NONE) {
      p = q;
      m->pieces.at[p].lo = x->lo;
      m->pieces.at[p].first = s;
    } else {
      m->pieces.at[p].hi = m->pieces.at[q].hi;
      m->pieces.at[p].last = m->pieces.at[q].last;
      spare_piece(m, q);
    }
  }
  if (p == NONE) {
    p = new_piece(m); /* cannot fail: place() has made sure that one is spare */
    m->pieces.at[p] = (Piece){.lo = x->lo, .hi = x->hi, .first = s, .last = s};
  }
  m->segments.at[m->pieces.at[p].first].piece = p;
  m->segments.at[m->pieces.at[p].last].piece = p;
  bin_add(m, p);
}

/* ---- placing a buffer ------------------------------------------------------------------------ */

static bool add_link(Mem *m, uint32_t *list, uint32_t stream, uint32_t what) {
  if (!vec_push(&m->links, ((Link){*list, stream, what}))) return false;
  *list = (uint32_t)m->links.n - 1;
  return true;
}

/* Will j still run when the instruction that was begun could? */
static bool under_way(const Mem *m, uint32_t j) {
  if (m->start == NULL) return j + 1 >= m->recent;
  const InstrVec *instrs = &m->rank->instrs;
  const uint32_t earlier = instrs->at[j].node, now = instrs->at[m->clocks.current].node;
  return m->start[earlier] + m->seconds[earlier] > m->start[now] + m->tiny;
}

/* 1 + the latest instruction that used the lower 'size' bytes and is not known to be complete; 0: all
 * are. '*hot': one of them is still under way. */
static uint32_t latest_use(const Mem *m, const Piece *p, uint64_t size, bool *hot) {
  uint32_t latest = 0;
  *hot = false;
  for (uint32_t s = p->first; s != NONE && m->segments.at[s].lo < p->lo + size;
       s = m->segments.at[s].next) {
    if (m->segments.at[s].owner == NONE) continue;
    for (uint32_t k = m->seen[m->segments.at[s].owner]; k != NONE; k = m->links.at[k].next) {
      const uint32_t i = m->links.at[k].what;
      if (clock_knows(&m->clocks, i)) continue;
      if (i >= latest) latest = i + 1;
      *hot = *hot || under_way(m, i);
    }
  }
  return latest;
}

/* A piece that may be taken. */
typedef struct Choice {
  uint32_t piece, use; /* as latest_use says */
  bool hot;
  uint64_t left;
} Choice;

/* First what nobody uses any more, then what fits closely, then what was used long ago. */
static bool better(Choice a, Choice b) {
  if (a.hot != b.hot) return b.hot;
  return a.left != b.left ? a.left < b.left : a.use < b.use;
}

/* The piece to take 'size' bytes from; NONE: no piece is large enough. */
static uint32_t choose(const Mem *m, uint64_t size, bool *hot) {
  Choice best = {.piece = NONE};
  uint32_t tried = 0;
  for (uint32_t bin = bin_filled(m, bin_of(size)); bin < N_BINS; bin = bin_filled(m, bin + 1)) {
    uint32_t seen = 0; /* in the first bin pieces may be too small */
    for (uint32_t p = m->bins[bin]; p != NONE && seen++ < MAX_TRIED; p = m->pieces.at[p].next) {
      const Piece *x = &m->pieces.at[p];
      if (x->hi - x->lo < size) continue;
      if (tried++ >= MAX_TRIED) {
        *hot = best.hot;
        return best.piece;
      }
      Choice c = {.piece = p, .left = x->hi - x->lo - size};
      if (m->policy == AVOID_WAITS) c.use = latest_use(m, x, size, &c.hot);
      if (best.piece == NONE || better(c, best)) best = c;
    }
  }
  *hot = best.piece != NONE && best.hot;
  return best.piece;
}

/* Cuts the lower or upper 'size' bytes off a piece for the buffer; who owned them goes to its
 * 'before'. */
static bool take(Mem *m, uint32_t p, uint64_t size, bool upper, uint32_t buffer) {
  bin_remove(m, p);
  const uint64_t lo = upper ? m->pieces.at[p].hi - size : m->pieces.at[p].lo, hi = lo + size;
  uint32_t s = upper ? m->pieces.at[p].last : m->pieces.at[p].first;
  uint32_t outer = upper ? m->segments.at[s].next : m->segments.at[s].prev, inner = NONE;
  for (uint64_t left = size; left > 0;) {
    Segment *x = &m->segments.at[s];
    const uint64_t n = x->hi - x->lo;
    if (x->owner != NONE && !add_link(m, &m->before[buffer], 0, x->owner)) return false;
    if (n > left) { /* the rest stays */
      if (upper) x->hi -= left;
      else x->lo += left;
      inner = s;
      break;
    }
    left -= n;
    inner = upper ? x->prev : x->next;
    spare_segment(m, s);
    s = inner;
  }
  const Segment mine = {.lo = lo,
                        .hi = hi,
                        .owner = buffer,
                        .live = true,
                        .piece = NONE,
                        .prev = upper ? inner : outer,
                        .next = upper ? outer : inner};
  m->segment[buffer] = insert_segment(m, mine);
  if (m->segment[buffer] == NONE) return false;
  m->offset[buffer] = lo;
  if (m->end < hi) m->end = hi;
  Piece *x = &m->pieces.at[p];
  if (x->hi - x->lo == size) {
    spare_piece(m, p);
    return true;
  }
  if (upper) x->hi = lo, x->last = inner;
  else x->lo = hi, x->first = inner;
  m->segments.at[inner].piece = p;
  bin_add(m, p);
  return true;
}

/* The bytes at the buffer's offset, all of them free; likewise. */
static bool take_at(Mem *m, uint64_t size, uint32_t buffer) {
  const uint64_t lo = m->offset[buffer], hi = lo + size;
  uint32_t s = m->tail;
  while (m->segments.at[s].lo > lo) s = m->segments.at[s].prev;
  if (m->segments.at[s].lo < lo) { /* the lower part stays */
    Segment rest = m->segments.at[s];
    rest.next = s;
    rest.hi = lo;
    if (insert_segment(m, rest) == NONE) return false;
    m->segments.at[s].lo = lo;
  }
  const uint32_t prev = m->segments.at[s].prev;
  while (s != NONE && m->segments.at[s].lo < hi) {
    Segment *x = &m->segments.at[s];
    const uint32_t next = x->next;
    if (x->owner != NONE && !add_link(m, &m->before[buffer], 0, x->owner)) return false;
    if (x->hi > hi) {
      x->lo = hi;
      break;
    }
    spare_segment(m, s);
    s = next;
  }
  m->segment[buffer] = insert_segment(m, (Segment){.lo = lo,
                                                   .hi = hi,
                                                   .owner = buffer,
                                                   .live = true,
                                                   .piece = NONE,
                                                   .prev = prev,
                                                   .next = s});
  return m->segment[buffer] != NONE;
}

static bool place(Mem *m, uint32_t buffer, uint64_t base) {
  const Buffer *b = &m->rank->buffers.at[buffer];
  const uint64_t size = aligned(b->bytes);
  if (m->policy == BY_SIZE) return size == 0 || take_at(m, size, buffer);
  m->offset[buffer] = base;
  if (size == 0) return true;
  const bool brief = b->first == b->last;
  const bool computes = m->rank->instrs.at[m->clocks.current].kind == INSTR_RUN;
  for (;;) {
    if (m->spare_pieces.n == 0) { /* for its release */
      const uint32_t p = new_piece(m);
      if (p == NONE) return false;
      spare_piece(m, p);
    }
    const bool free_tail = m->tail != NONE && !m->segments.at[m->tail].live;
    const uint32_t last = free_tail ? m->segments.at[m->tail].piece : NONE;
    const uint64_t room = free_tail ? m->pieces.at[last].hi - m->pieces.at[last].lo : 0;
    if (brief && room >= size) return take(m, last, size, true, buffer);
    bool hot; /* compute would wait for communication */
    const uint32_t p = choose(m, size, &hot);
    if (p != NONE && hot && m->spare >= size && computes) {
      m->spare -= size;
      if (!grow(m, base, size)) return false;
      continue;
    }
    if (p != NONE) return take(m, p, size, false, buffer);
    if (!grow(m, base, size - room)) return false;
  }
}

/* ---- by size --------------------------------------------------------------------------------- */

typedef struct Sized {
  uint64_t size, at;
  uint32_t buffer, first, last;
} Sized;

static int largest_first(const void *a, const void *b) {
  const Sized *x = a, *y = b;
  if (x->size != y->size) return x->size > y->size ? -1 : 1;
  return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* By buffer: the last instruction of the list that starts, in virtual time, before all uses have ended. */
static bool find_done(const Mem *m, uint32_t *done) {
  const RankPlan *r = m->rank;
  double *end = calloc(r->buffers.n + 1, sizeof *end);
  if (end == NULL) return false;
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    const double at = m->start[x->node] + m->seconds[x->node];
    for (uint32_t k = x->access_first; k < x->access_first + x->n_accesses; k++)
      if (end[r->accesses.at[k].buffer] < at) end[r->accesses.at[k].buffer] = at;
  }
  for (uint32_t k = 0; k < r->buffers.n; k++) {
    uint32_t lo = r->buffers.at[k].last, hi = (uint32_t)r->instrs.n; /* starts ascend */
    while (hi - lo > 1 && lo < hi) {
      const uint32_t mid = lo + (hi - lo) / 2;
      if (m->start[r->instrs.at[mid].node] < end[k] - m->tiny) lo = mid;
      else hi = mid;
    }
    done[k] = lo;
  }
  free(end);
  return true;
}

/* Offsets of all dynamic buffers; the space they take ends at m->end. done: NULL, or until when each keeps
 * its space in place of its last use. */
static bool pack(Mem *m, uint64_t base, uint32_t n, const uint32_t *done) {
  const RankPlan *r = m->rank;
  Sized *all = malloc((n + 1) * sizeof *all);
  Sized *placed = malloc((n + 1) * sizeof *placed); /* by address */
  if (all == NULL || placed == NULL) {
    free(all), free(placed);
    return false;
  }
  n = 0;
  for (uint32_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    m->offset[k] = base;
    if (b->whole_step || b->bytes == 0) continue;
    all[n++] = (Sized){
        .size = aligned(b->bytes), .at = base, .buffer = k, .first = b->first, .last = done != NULL ? done[k] : b->last};
  }
  qsort(all, n, sizeof *all, largest_first);
  m->end = base;
  for (uint32_t i = 0; i < n; i++) {
    Sized x = all[i];
    for (uint32_t k = 0; k < i && placed[k].at < x.at + x.size; k++) {
      const Sized *y = &placed[k];
      if (y->first > x.last || x.first > y->last) continue;
      if (x.at < y->at + y->size) x.at = y->at + y->size;
    }
    uint32_t to = i;
    for (; to > 0 && placed[to - 1].at > x.at; to--) placed[to] = placed[to - 1];
    placed[to] = x;
    m->offset[x.buffer] = x.at;
    if (m->end < x.at + x.size) m->end = x.at + x.size;
  }
  free(all), free(placed);
  return true;
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* Access of a dynamic buffer by instruction i, which was begun. */
static bool use(Mem *m, uint32_t i, uint32_t buffer, uint64_t base) {
  const uint32_t stream = m->rank->instrs.at[i].stream;
  if (m->seen[buffer] == NONE && !place(m, buffer, base)) return false;
  for (uint32_t k = m->seen[buffer]; k != NONE; k = m->links.at[k].next)
    if (m->links.at[k].stream == stream) {
      m->links.at[k].what = i;
      return true;
    }
  if (!add_link(m, &m->seen[buffer], stream, i)) return false;
  for (uint32_t k = m->before[buffer]; k != NONE; k = m->links.at[k].next)
    for (uint32_t l = m->seen[m->links.at[k].what]; l != NONE; l = m->links.at[l].next)
      if (m->links.at[l].stream != stream)
        deps_add(&m->deps, m->links.at[l].stream, m->links.at[l].what);
  return true;
}

static bool place_all(Mem *m, uint64_t base, uint64_t bound, uint64_t spare, Policy policy) {
  RankPlan *r = m->rank;
  m->policy = policy;
  m->segments.n = m->pieces.n = m->spare_segments.n = m->spare_pieces.n = m->links.n = 0;
  m->waits.n = m->wait_first.n = 0;
  m->waits_added = 0;
  m->recent = 0;
  if (policy != BY_SIZE) m->end = base; /* there: as packed */
  m->tail = NONE;
  memset(m->filled, 0, sizeof m->filled);
  for (uint32_t i = 0; i < N_BINS; i++) m->bins[i] = NONE;
  for (uint32_t i = 0; i < r->buffers.n; i++) m->before[i] = m->seen[i] = m->segment[i] = NONE;
  memset(m->clocks.last, 0, m->clocks.n_streams * sizeof *m->clocks.last);
  if (bound > 0 && !grow(m, base, bound)) return false;
  m->spare = spare;
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    if (!vec_push(&m->wait_first, (uint32_t)m->waits.n)) return false;
    clock_begin(&m->clocks, i, x->stream);
    for (uint32_t k = 0; k < x->n_waits; k++) {
      const uint32_t j = r->waits.at[x->wait_first + k];
      if (!vec_push(&m->waits, j)) return false;
      clock_wait(&m->clocks, j);
    }
    const Access *a = r->accesses.at + x->access_first;
    for (uint32_t k = 0; k < x->n_accesses; k++)
      if (!r->buffers.at[a[k].buffer].whole_step && !use(m, i, a[k].buffer, base)) return false;
    const size_t planned = m->waits.n;
    if (!deps_wait(&m->deps, &m->clocks, &m->waits)) return false;
    m->waits_added += (uint32_t)(m->waits.n - planned);
    clock_end(&m->clocks);
    if (x->kind == INSTR_RUN) m->recent = i + 1;
    for (uint32_t k = 0; k < x->n_accesses; k++)
      if (r->buffers.at[a[k].buffer].last == i && m->segment[a[k].buffer] != NONE)
        release(m, a[k].buffer);
  }
  return vec_push(&m->wait_first, (uint32_t)m->waits.n);
}

/* The most dynamic bytes that are alive at once, and the first instruction where they are. */
static bool find_peak(const RankPlan *r, uint64_t *bytes, uint32_t *instr) {
  const uint32_t n = (uint32_t)r->instrs.n;
  uint64_t *change = calloc(2 * ((size_t)n + 1), sizeof *change), live = 0;
  if (change == NULL) return false;
  for (uint32_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    if (b->whole_step || b->first > b->last) continue;
    change[2 * b->first] += aligned(b->bytes);
    change[2 * (b->last + 1) + 1] += aligned(b->bytes);
  }
  *bytes = 0;
  *instr = 0;
  for (uint32_t i = 0; i < n; i++) {
    live += change[2 * i];
    live -= change[2 * i + 1];
    if (live > *bytes) *bytes = live, *instr = i;
  }
  free(change);
  return true;
}

/* Where an instruction puts what comes from other ranks, in a buffer of its own: its access. */
static bool arrives(const Instr *x, uint32_t *access) {
  const bool gathers = x->kind == INSTR_ALL_GATHER && x->n_accesses == 2; /* all parameters, then the share */
  *access = x->access_first + (gathers ? 0 : x->n_accesses - 1);
  return gathers || x->kind == INSTR_RECV || x->kind == INSTR_ALL_TO_ALL;
}

/* One buffer more for each stream that receives, exchanges or gathers. */
static bool find_slack(const RankPlan *r, uint64_t *bytes) {
  uint64_t *most = calloc(r->streams.n + 1, sizeof *most);
  *bytes = 0;
  if (most == NULL) return false;
  for (uint32_t i = 0; r->streams.n > 1 && i < r->instrs.n; i++) {
    const Instr *x = &r->instrs.at[i];
    uint32_t to;
    if (!arrives(x, &to)) continue;
    const uint64_t n = aligned(r->buffers.at[r->accesses.at[to].buffer].bytes);
    if (most[x->stream] < n) most[x->stream] = n;
  }
  for (size_t s = 0; s < r->streams.n; s++) *bytes += most[s];
  free(most);
  return true;
}

/* The latest try becomes the plan. */
static bool keep(Mem *m) {
  RankPlan *r = m->rank;
  if (!vec_reserve(&r->waits, m->waits.n - r->waits.n)) return false;
  for (uint32_t k = 0; k < r->buffers.n; k++)
    if (!r->buffers.at[k].whole_step) r->buffers.at[k].offset = m->offset[k];
  if (m->waits.n > 0) memcpy(r->waits.at, m->waits.at, m->waits.n * sizeof *m->waits.at);
  r->waits.n = m->waits.n;
  for (uint32_t i = 0; i < r->instrs.n; i++) {
    Instr *x = &r->instrs.at[i];
    x->wait_first = m->wait_first.at[i];
    x->n_added = m->wait_first.at[i + 1] - x->wait_first - x->n_waits;
    x->n_waits += x->n_added;
    for (uint32_t k = 0; k < x->n_waits; k++)
      r->instrs.at[r->waits.at[x->wait_first + k]].signals = true;
  }
  r->waits_added = m->waits_added;
  r->arena_bytes = m->end;
  return true;
}

static void resolve(RankPlan *r) {
  for (size_t i = 0; i < r->instrs.n; i++) {
    Instr *x = &r->instrs.at[i];
    for (uint32_t k = 0; k < x->n_accesses; k++) {
      const Access *a = &r->accesses.at[x->access_first + k];
      const uint64_t at = r->buffers.at[a->buffer].offset + a->lo;
      if (x->kind == INSTR_RUN) r->bind_offset.at[x->bind_first + k] = at;
      else if (k == 0) x->offset = at;
      else x->part = at;
    }
    if (instr_is_collective(x->kind) && x->n_accesses == 1)
      x->part += x->offset; /* lowering has left its place in there */
  }
  for (size_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    if (b->role == BUFFER_STEP) r->step_offset = b->offset;
    if (b->role == BUFFER_METRICS) r->metrics_offset = b->offset;
    if (b->role == BUFFER_SCRATCH) r->scratch_offset = b->offset, r->scratch_bytes = b->bytes;
  }
}

static void account(RankPlan *r) {
  uint64_t sum = 0;
  memset(r->at_peak, 0, sizeof r->at_peak);
  for (size_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    if (!b->whole_step && (b->first > r->peak_instr || b->last < r->peak_instr)) continue;
    if (b->offset >= r->arena_bytes && b->bytes > 0) continue; /* shared */
    r->at_peak[b->category] += b->bytes;
    sum += b->bytes;
  }
  r->at_peak[MEM_WORKSPACE] += r->arena_bytes - sum;
}

static uint64_t list_bytes(const RankPlan *r) {
  return r->instrs.cap * sizeof *r->instrs.at + r->waits.cap * sizeof *r->waits.at +
         r->bind_offset.cap * (sizeof *r->bind_offset.at + sizeof *r->bind_first_write.at) +
         r->accesses.cap * sizeof *r->accesses.at + r->buffers.cap * sizeof *r->buffers.at +
         r->streams.cap * sizeof *r->streams.at;
}

static void count(RankPlan *r) {
  memset(r->calls, 0, sizeof r->calls);
  memset(r->moved, 0, sizeof r->moved);
  for (size_t i = 0; i < r->instrs.n; i++) {
    r->calls[r->instrs.at[i].kind]++;
    r->moved[r->instrs.at[i].kind] += r->instrs.at[i].bytes;
  }
  r->n_waits = (uint32_t)r->waits.n;
  r->list_bytes = list_bytes(r);
  r->kept_bytes = 0;
  for (size_t k = 0; k < r->buffers.n; k++) {
    const Buffer *b = &r->buffers.at[k];
    const bool kept =
        b->role == BUFFER_PARAMS || b->role == BUFFER_GRADS || b->role == BUFFER_STATE;
    if (kept && b->offset + b->bytes > r->kept_bytes) r->kept_bytes = b->offset + b->bytes;
  }
  r->kept_bytes = aligned(r->kept_bytes);
}

/* By size, after AVOID_WAITS, so that by virtual time nothing waits; true: that is smaller. */
static bool pack_timed(Mem *m, uint64_t base, uint32_t n, bool *smaller) {
  const uint64_t end = m->end;
  uint32_t *done = malloc((m->rank->buffers.n + 1) * sizeof *done);
  *smaller = false;
  if (done == NULL) return false;
  const bool packed = find_done(m, done) && pack(m, base, n, done);
  free(done);
  *smaller = packed && m->end < end;
  return packed;
}

/* The other ways, after AVOID_WAITS: by size without waits, if that is enough; otherwise the smallest arena,
 * whatever it takes. */
static bool make_smaller(Mem *m, uint64_t base, uint64_t bound, uint64_t slack, uint64_t enough) {
  uint64_t best_end = m->end;
  Policy best = AVOID_WAITS;
  uint32_t n = 0;
  for (size_t k = 0; k < m->rank->buffers.n; k++) n += !m->rank->buffers.at[k].whole_step;
  if (n <= MAX_BY_SIZE && m->start != NULL) {
    bool smaller;
    if (!pack_timed(m, base, n, &smaller)) return false;
    if (smaller && m->end <= enough) return place_all(m, base, m->end - base, 0, BY_SIZE);
  }
  if (!place_all(m, base, bound, 0, AVOID_GROWTH)) return false;
  if (m->end < best_end) best_end = m->end, best = AVOID_GROWTH;
  if (n <= MAX_BY_SIZE) {
    if (!pack(m, base, n, NULL)) return false;
    if (m->end < best_end) return place_all(m, base, m->end - base, 0, BY_SIZE);
  }
  if (best == AVOID_GROWTH) return place_all(m, base, bound, 0, best);
  return place_all(m, base, bound + slack, bound / SPARE, best);
}

/* Parameters that another plan keeps, behind the rank's own arena. */
static bool share_params(RankPlan *r, const RankPlan *trains) {
  for (size_t k = 0; k < r->buffers.n; k++) {
    Buffer *b = &r->buffers.at[k];
    if (b->role != BUFFER_PARAMS) continue;
    const Buffer *of = NULL;
    for (size_t i = 0; i < trains->buffers.n && of == NULL; i++) {
      const Buffer *x = &trains->buffers.at[i];
      if (x->role == BUFFER_PARAMS && x->id == b->id && x->lo == b->lo && x->hi == b->hi &&
          x->bytes == b->bytes)
        of = x;
    }
    if (of == NULL) return false;
    b->offset = r->arena_bytes + of->offset;
  }
  r->shared_bytes = trains->kept_bytes;
  return true;
}

typedef enum Placed { PLACED, NO_MEMORY, NOT_SHARED } Placed;

/* trains: NULL, or the rank whose parameters are used. */
static Placed place_rank(const Plan *plan, RankPlan *r, uint64_t limit, const RankPlan *trains) {
  Mem m = {.rank = r, .tiny = plan->predicted_seconds * 1e-9};
  if (plan->node_seconds != NULL && plan->node_start != NULL)
    m.start = plan->node_start, m.seconds = plan->node_seconds;
  const size_t n = r->buffers.n > 0 ? r->buffers.n : 1;
  uint64_t base = 0, bound, slack;
  Placed result = NO_MEMORY;
  for (size_t k = 0; k < r->buffers.n; k++) {
    if (!r->buffers.at[k].whole_step) continue;
    if (trains != NULL && r->buffers.at[k].role == BUFFER_PARAMS) continue;
    r->buffers.at[k].offset = base;
    base += aligned(r->buffers.at[k].bytes);
  }
  m.before = malloc(n * sizeof *m.before);
  m.seen = malloc(n * sizeof *m.seen);
  m.segment = malloc(n * sizeof *m.segment);
  m.offset = malloc(n * sizeof *m.offset);
  if (m.before == NULL || m.seen == NULL || m.segment == NULL || m.offset == NULL ||
      !clocks_new(&m.clocks, (uint32_t)r->streams.n, (uint32_t)r->instrs.n) ||
      !deps_new(&m.deps, (uint32_t)r->streams.n) || !find_peak(r, &bound, &r->peak_instr) ||
      !find_slack(r, &slack))
    goto out;
  if (!place_all(&m, base, bound + slack, bound / SPARE, AVOID_WAITS)) goto out;
  const uint64_t pieces = r->streams.n > 1 ? bound / 16 : bound / 64; /* that may be lost in them */
  uint64_t enough = base + bound + slack + bound / SPARE + pieces;
  if (limit != 0 && limit < enough) enough = limit;
  if (m.end > enough && !make_smaller(&m, base, bound, slack, enough)) goto out;
  if (!keep(&m)) goto out;
  result = trains == NULL || share_params(r, trains) ? PLACED : NOT_SHARED;
  resolve(r);
  account(r);
  count(r);
  r->made = true;
out:
  free(m.before), free(m.seen), free(m.segment), free(m.offset);
  clocks_free(&m.clocks);
  deps_free(&m.deps);
  vec_free(&m.segments), vec_free(&m.pieces), vec_free(&m.spare_segments);
  vec_free(&m.spare_pieces), vec_free(&m.links), vec_free(&m.waits), vec_free(&m.wait_first);
  return result;
}

PiperStatus plan_place_rank(Plan *plan, uint32_t index, PiperErr *err) {
  RankPlan *r = &plan->ranks[index];
  const RankPlan *trains = NULL;
  uint64_t limit = plan->options.memory_limit;
  Placed result = NOT_SHARED;
  if (plan->trains != NULL && (trains = plan_rank(plan->trains, r->rank)) != NULL) {
    TRY(plan_lists_of(plan->trains, (uint32_t)(trains - plan->trains->ranks), err));
    /* It runs while the other one does not: best within what that has besides what it keeps. */
    limit = trains->arena_bytes - trains->kept_bytes;
  }
  if (plan->trains == NULL || trains != NULL) result = place_rank(plan, r, limit, trains);
  if (result == NO_MEMORY) return err_nomem(err, "the memory plan");
  if (result == NOT_SHARED)
    return err_set(err, PIPER_EBUG,
                   "rank %d does not keep the parameters that the other plan keeps there",
                   (int)r->rank);
  return PIPER_OK;
}

PiperStatus plan_place_memory(Plan *plan, PiperErr *err) {
  for (uint32_t i = 0; i < plan->n_ranks; i++) TRY(plan_place_rank(plan, i, err));
  return PIPER_OK;
}
