-- Posts the bodies of a file in turn, and prints the figures as one line of JSON.
-- Arguments behind the URL: the path, then the file of bodies, one on a line.

local requests, number, headers = {}, 0, {}

function init(args)
  local count = 0
  for line in io.lines(args[2]) do
    headers["content-type"] = "application/json"
    headers["x-tenant-id"] = "tenant-" .. (count % 4)
    headers["x-session-id"] = "session-" .. count
    headers["authorization"] = "Bearer sk-bench"
    count = count + 1
    requests[count] = wrk.format("POST", args[1], headers, line)
  end
end

function request()
  number = number % #requests + 1
  return requests[number]
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"p50":%.6f,"p99":%.6f,"failed":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
