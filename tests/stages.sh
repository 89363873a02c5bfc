# Sourced by the scripts that run in stages: a line with verdict and minutes for each, and root where a package is missing.
#
#   stage NAME CMD…     runs CMD; false when it failed. CMD is not under `set -e`: join its commands with `&&`
#   stages_told TITLE   prints the table; false when a stage failed
#   as_root CMD…        CMD as it is for root, through sudo for others

stages=()
stages_failed=0

stage() {
  local name="$1" start=$SECONDS result=passed
  shift
  echo "=== $name"
  "$@" || { result=FAILED; stages_failed=$((stages_failed + 1)); }
  stages+=("$(printf '%-44s %-7s %5.1f min' "$name" "$result" "$(awk "BEGIN { print ($SECONDS - $start) / 60 }")")")
  [[ "$result" == passed ]]
}

stages_told() {
  printf '\n=== %s\n' "$1"
  ((${#stages[@]} == 0)) || printf '%s\n' "${stages[@]}"
  if ((stages_failed)); then echo "FAILED: $stages_failed of ${#stages[@]} stages"; else echo "PASSED: all ${#stages[@]} stages"; fi
  ((stages_failed == 0))
}

as_root() { if (($(id -u) == 0)); then "$@"; else sudo "$@"; fi; }
