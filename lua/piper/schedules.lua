-- schedules - pipeline schedules as lists of directives: a split over MB, the placement of every
-- stage, and one order a rank. Each is a file in schedules/: copy one and change it, nothing there is
-- special.
--
--   strategy:add(piper.schedules.one_f_one_b { ranks = 4, microbatches = 8 })
local check = require "piper.check"
local rows_of = require "piper.schedules.rows"

local M = {
  check = require "piper.schedules.check".check,
  metrics = require "piper.schedules.simulate".metrics,
  automatic = require "piper.schedules.automatic",
  parse = rows_of.parse,
}

local BUILDERS = {
  "gpipe", "one_f_one_b", "interleaved_one_f_one_b", "looped_bfs", "zb_h1", "zb_h2", "interleaved_zero_bubble", "zbv",
  "dualpipe", "dualpipev",
}
for _, name in ipairs(BUILDERS) do M[name] = require("piper.schedules." .. name) end

---A schedule in the notation of plan:actions(): one line a rank.
---@param list piper.Directive[]|piper.Strategy
---@return string
function M.text(list) return rows_of.text(rows_of.read("text", list)) end

return check.strict(M, "schedules")
