---Bytes of memory that a new allocation may take now; nil where the system does not say.
---@return integer?
return function()
  local f = io.open "/proc/meminfo"
  if not f then return nil end
  local kib = f:read "a":match "MemAvailable:%s+(%d+) kB"
  f:close()
  return kib and math.tointeger(kib) * 1024
end
