-- Purpose: the clients of the DRF benchmark, for wrk: 20,000 of them take turns, each by an address of its own.
local CLIENTS = 20000
local requests, turn = {}, 0

function init()
  for n = 1, CLIENTS do
    local address = string.format("10.%d.%d.%d", n / 65536, n / 256 % 256, n % 256)
    requests[n] = wrk.format("GET", wrk.path, {
      ["Host"] = "localhost",
      ["X-Forwarded-For"] = address,
      ["X-Device-Id"] = "device-" .. n,
      ["X-Session"] = "session-" .. n,
    })
  end
end

function request()
  turn = turn % CLIENTS + 1
  return requests[turn]
end

function done(summary)
  local lost = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  io.write(string.format("RESULT %d %d %d %d\n", summary.requests, summary.duration, summary.errors.status, lost))
end
