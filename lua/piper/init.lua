-- The module "piper": every part is loaded when it is first asked for.
local core = require "piper.core"

local M = { _VERSION = core.version }

return M
