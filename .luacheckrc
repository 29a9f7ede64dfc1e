std = "lua54"
max_line_length = 120
files["tests/lua"] = { max_line_length = false }
