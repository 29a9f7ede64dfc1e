-- Strategies over thousands of devices compile in the time and memory of their nodes, which stand for
-- whole device sets; what a plan says of a rank without its lists is what a run of it has. CPU time and
-- peak memory are those of this process, so a busy machine does not matter.
local tap = require "tap"
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local sanitized = (os.getenv "SANITIZED" or "") ~= "" -- costs several times the time and memory

local function peak_mib()
  for line in io.lines "/proc/self/status" do
    local kib = line:match "^VmHWM:%s+(%d+)"
    if kib then return tonumber(kib) / 1024 end
  end
end

-- Stages of layers, each an annotated chunk, so that a step gathers and drops every layer many times.
local function deep(stages, layers, width)
  return piper.model("deep", function(m)
    local h = m:input("x", { "batch", width }, "f32")
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        for l = 1, layers do
          piper.annotate("LAYER", function()
            h = nn.relu(nn.linear(h, ("stage%d.layer%d"):format(stage, l), { out = width }))
          end)
        end
        if stage == stages - 1 then m:loss(nn.sum_squares(h)) end
      end)
    end
  end)
end

-- Each stage on as many devices of its own; the flags are those of replicate.
local function replicated(stages, replicas, microbatches, flags)
  local devices = {}
  for stage = 1, stages do
    devices[stage] = {}
    for j = 1, replicas do devices[stage][j] = (stage - 1) * replicas + j - 1 end
  end
  local s = piper.strategy():add(schedules.one_f_one_b { ranks = stages, microbatches = microbatches, devices = devices })
  for stage = 1, stages do
    local spec = { filter = { PP = stage - 1 }, devices = devices[stage] }
    for k, v in pairs(flags) do spec[k] = v end
    s:replicate(spec)
  end
  return s
end

-- 16 stages of four layers on 256 devices each, 128 microbatches, all divided (ZeRO-3), a bucket a layer.
-- 509 does not divide, so the shares of devices differ.
do
  local stages, layers, replicas, microbatches, width = 16, 4, 256, 128, 509
  local start = os.clock()
  local s = replicated(stages, replicas, microbatches, { shard_params = true, bucket_size = 1 })
  local plan = piper.compile(deep(stages, layers, width), s,
    { batch = microbatches * replicas, optimizer = piper.adamw { lr = 1e-3 }, memory_limit = 1 << 40, verify = false })
  local seconds, mib = os.clock() - start, peak_mib()
  tap.diag(("4096 devices, %d nodes: %.2f s of CPU time, at most %.0f MiB"):format(plan.core:info().nodes, seconds, mib))
  tap.ok(seconds < (sanitized and 20 or 2), "4096 devices compile in less than 2 s")
  tap.ok(mib < (sanitized and 4096 or 256), "and in less than 256 MiB")

  local memory, wrong, elements = plan:memory(), 0, layers * (width * width + width)
  for stage = 0, stages - 1 do
    local kept = 0
    for j = 0, replicas - 1 do
      local m, sum = memory[stage * replicas + j], 0
      for name, bytes in pairs(m) do sum = sum + (name ~= "peak" and bytes or 0) end
      wrong = wrong + (sum == m.peak and 0 or 1)
      kept = kept + m.optimizer
    end
    wrong = wrong + (kept == elements * 2 * 4 and 0 or 1)
  end
  tap.is(wrong, 0, "memory of every rank adds up, and the shares of all ranks to all of it")

  local calls, kinds = 0, {}
  for _, row in ipairs(plan:communication()) do
    calls = calls + row.calls
    kinds[row.kind] = (kinds[row.kind] or 0) + row.calls
  end
  tap.is(kinds.transfer, 2 * (stages - 1) * microbatches * replicas, "every transfer is counted")
  tap.is(kinds.reduce_scatter, stages * layers, "and every reduction, once a step")
  tap.diag(("%d calls, %d of them gathers"):format(calls, kinds.all_gather))

  -- A proof takes the lists of all ranks: not where they would not fit.
  local has = package.loaded["piper.available"]
  package.loaded["piper.available"] = function() return 1 << 20 end
  local fine, message = pcall(plan.verify, plan)
  package.loaded["piper.available"] = has
  tap.like(tostring(not fine and message), "verify: the proof needs about %d+ MiB for the lists of 4096 ranks and 1 MiB are available",
    "a proof that does not fit is refused")
end

-- DualPipe over 1024 devices: 16 pipeline ranks of 64, experts in groups of 8, ZeRO-2.
local function experts(stages)
  return piper.model("experts", function(m)
    local h = m:input("x", { "batch", 8, 64 }, "f32")
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        h = h + nn.moe(nn.linear(h, "l" .. stage, { out = 64 }), "moe" .. stage, { experts = 8, top_k = 2, width = 67 })
        if stage == stages - 1 then m:loss(nn.sum_squares(h)) end
      end)
    end
  end)
end

local function dualpipe(ranks, replicas, microbatches)
  local sets, on = {}, {}
  for r = 1, ranks do
    sets[r] = {}
    for j = 1, replicas do sets[r][j] = (r - 1) * replicas + j - 1 end
  end
  local list = schedules.dualpipe { ranks = ranks, microbatches = microbatches, devices = sets }
  local s = piper.strategy():add(list)
  for _, d in ipairs(list) do -- both copies of a stage
    for _, stage in ipairs(d.op == "place" and (type(d.filter.PP) == "table" and d.filter.PP or { d.filter.PP }) or {}) do
      on[stage] = table.move(d.devices, 1, #d.devices, #(on[stage] or {}) + 1, on[stage] or {})
    end
  end
  for stage = 0, ranks - 1 do
    local all, groups = on[stage], {}
    table.sort(all)
    for g = 1, #all // 8 do groups[g] = table.move(all, g * 8 - 7, g * 8, 1, {}) end
    s:replicate { filter = { PP = stage }, devices = all, shard_grads = true, bucket_size = 0.02 }
    s:shard { filter = { PP = stage, EP = "*" }, devices = groups }
  end
  return s
end

local start = os.clock()
local plan = piper.compile(experts(16), dualpipe(16, 64, 40), { batch = 40 * 64, memory_limit = 1 << 40, verify = false })
local seconds = os.clock() - start
tap.diag(("1024 devices, %d nodes: %.2f s of CPU time"):format(plan.core:info().nodes, seconds))
tap.ok(seconds < (sanitized and 20 or 2), "DualPipe with experts on 1024 devices compiles in less than 2 s")

-- 64 ranks, 64 microbatches: the script's own work included.
start = os.clock()
piper.compile(deep(64, 1, 8), replicated(64, 1, 64, {}), { batch = 64, verify = false })
seconds = os.clock() - start
tap.diag(("64 ranks, 64 microbatches: %.2f s of CPU time"):format(seconds))
tap.ok(seconds < (sanitized and 20 or 2), "64 ranks with 64 microbatches: less than 2 s from the script to the plan")

-- What a plan says of ranks that are alike is what a run allocates on each of them.
local function equal_to_run(what, small, strategy, batch)
  local p = piper.compile(small, strategy, { batch = batch, optimizer = piper.adamw { lr = 1e-3 } })
  local said = p:memory()
  local row = {}
  for i = 1, 37 do row[i] = i / 37 end
  local run = piper.train(p, { data = piper.data.table { x = { row } }, seed = 1 })
  local has, differ, sizes, n = run:memory(), 0, {}, 0
  for rank, m in pairs(has) do
    for name, bytes in pairs(m) do differ = differ + (said[rank][name] == bytes and 0 or 1) end
    if not sizes[m.optimizer] then n = n + 1 end
    sizes[m.optimizer] = true
  end
  run:close()
  tap.is(differ, 0, what .. ": memory is that of the run")
  tap.ok(n > 1, what .. ": shares of several sizes")
end
equal_to_run("seven replicas, ZeRO-3", deep(2, 2, 37), replicated(2, 7, 2, { shard_params = true, bucket_size = 0.001 }), 28)
equal_to_run("seven replicas, ZeRO-1", deep(2, 2, 37), replicated(2, 7, 2, { shard_optimizer = true }), 28)
tap.done()
