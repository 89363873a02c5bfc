# Sourced by the test scripts: start a server on a free port, wait for it, stop it at the end.
#
#   start_server LOG serve-arguments...   sets server_url; the server ends with the script
#   stop_server                           ends it now

server_pid=""
server_url=""

free_port() {
  "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start_server() {
  local log="$1" port waited
  shift
  port="$(free_port)"
  server_url="http://127.0.0.1:$port"
  "$tinderbox" serve --port "$port" "$@" >"$log" 2>&1 &
  server_pid=$!
  trap stop_server EXIT
  for ((waited = 0; waited < 300; waited++)); do
    if "$python" -c "import urllib.request; urllib.request.urlopen('$server_url/api/v1/healthz', timeout=2)" 2>/dev/null; then
      return
    fi
    kill -0 "$server_pid" 2>/dev/null || break
    sleep 0.2
  done
  echo "the server did not become ready; its log ends:" >&2
  tail -n 30 "$log" >&2
  return 1
}

stop_server() {
  [[ -n "$server_pid" ]] || return 0
  kill "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
  server_pid=""
}
