# shellcheck shell=bash
# Load CANN and NNAL unless they are loaded. BASH_ENV of the image names this file.
# The vendor's scripts print, and read unset variables; a program that needs CANN reports what is missing.
load_cann() {
    local each
    set --
    for each in ascend-toolkit cann nnal/atb; do
        # shellcheck source=/dev/null
        [[ ! -f "/usr/local/Ascend/$each/set_env.sh" ]] || source "/usr/local/Ascend/$each/set_env.sh" >/dev/null 2>&1
    done
}
if [[ -z "${ATB_HOME_PATH:-}" ]]; then
    load_cann
fi
unset -f load_cann
