-- Links between README.md and the pages of doc/ lead somewhere: to a file of the tree, and to a heading of it.
local tap = require "tap"
local root = os.getenv "srcdir" .. "/"

local function read(path)
  local f = io.open(root .. path)
  if not f then return nil end
  local text = f:read "a" -- nil: a folder
  f:close()
  return text or ""
end

-- The names that a browser gives to the headings of a page.
local function anchors(text)
  local names = {}
  for title in ("\n" .. text):gsub("\n```.-\n```", ""):gmatch "\n#+ ([^\n]+)" do
    names[title:lower():gsub("[^%w%s_-]", ""):gsub("%s", "-")] = true
  end
  return names
end

local pages, links = { "README.md" }, 0
for path in io.popen("ls '" .. root .. "doc'"):lines() do pages[#pages + 1] = "doc/" .. path end
for _, page in ipairs(pages) do
  local text, lost = read(page), {}
  local folder = page:match "^(.*/)" or ""
  for target in text:gsub("\n```.-\n```", ""):gmatch "%]%(([^)%s]+)%)" do
    if not target:find "^%a+:" then
      links = links + 1
      local path, anchor = target:match "^([^#]*)#?(.*)$"
      path = path == "" and page or folder .. path
      local found = read(path)
      if not found or anchor ~= "" and not anchors(found)[anchor] then lost[#lost + 1] = target end
    end
  end
  tap.is(table.concat(lost, " "), "", page)
end
tap.ok(links > 40, "there are many")
tap.done()
