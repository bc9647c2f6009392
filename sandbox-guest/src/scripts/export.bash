# Packing a directory, a file or a link.
# shellcheck disable=SC2154 # what is not assigned here is in files.bash, which comes first.

# __sbx_export NONCE PATH: a record B, an archive with one entry at its top, a record E.
__sbx_export() {
    local dir=${2%/*} name=${2##*/} text
    __sbx_fault=
    if [[ ! -e $2 && ! -L $2 ]] && __sbx_missing "$2"; then
        :
    elif ! (PATH=$__sbx_tools && type -P tar >/dev/null); then
        __sbx_fault='notool tar'
    elif ! cd -P -- "${dir:-/}"; then
        __sbx_fault='denied its directory cannot be entered'
    else
        __sbx_say "$1" B ''
        {
            __sbx_err=$(
                { __sbx_tool tar -c -f - -- "$name" 2>&1 >&9 </dev/null; } | {
                    IFS= read -r -d '' -n 4000 text
                    printf %s "$text"
                    __sbx_tool cat >/dev/null
                }
                exit "${PIPESTATUS[0]}"
            )
        } 9>&1
        __sbx_code=$?
        ((__sbx_code == 0)) || __sbx_fault="failed ${__sbx_err:-tar ended with $__sbx_code}"
    fi
    cd /
    __sbx_say "$1" E "+ ${__sbx_fault:-ok 0}"
}
