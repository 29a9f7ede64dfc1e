-- progress - what long work shows: one line on a terminal that is rewritten, and that is gone
-- whenever the script may print; plain lines, far apart, elsewhere.
local core = require "piper.core"

local M = {}

local SHOW_AFTER = 1    -- seconds: shorter work shows nothing
local PLAIN_EVERY = 30  -- seconds between plain lines

local Progress = {}
Progress.__index = Progress

---@param first integer steps done before
---@param last integer
---@param word? string what a step is called (default "step")
function M.new(first, last, word)
  local now = core.system.seconds()
  return setmetatable({
    word = word or "step", first = first, last = last, start = now, shown = now, text = nil, on_line = false,
    terminal = core.system.stderr_is_terminal(),
  }, Progress)
end

local function duration(seconds)
  if seconds < 90 then return ("%.0f s"):format(seconds) end
  return ("%d min"):format(math.ceil(seconds / 60))
end

-- About to compute: the line may stand until done() wipes it.
function Progress:working()
  if self.terminal and self.text and core.system.seconds() - self.start > SHOW_AFTER then
    io.stderr:write("\r", self.text, "\27[K")
    self.on_line = true
  end
end

local function wipe(self)
  if self.on_line then io.stderr:write "\r\27[K" end
  self.on_line = false
end

---@param step integer
---@param metrics piper.Metrics
function Progress:done(step, metrics)
  wipe(self)
  local now = core.system.seconds()
  local left = (now - self.start) / (step - self.first) * (self.last - step)
  self.text = ("%s %d/%d  loss %.4g  %.0f tokens/s  %s left"):format(self.word, step, self.last, metrics.loss,
    metrics.tokens_per_second, duration(left))
  if not self.terminal and now - self.shown > PLAIN_EVERY then
    io.stderr:write("piper: ", self.text, "\n")
    self.shown = now
  end
end

-- The loop over run:steps ended, however it did.
Progress.__close = wipe

return M
