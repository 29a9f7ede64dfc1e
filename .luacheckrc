std = "lua54"
max_line_length = false
ignore = { "581" } -- not (x <= y) differs from x > y where NaN may come
