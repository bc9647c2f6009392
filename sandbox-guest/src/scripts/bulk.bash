# Writing many small files at once: the tools run for a whole delivery, not for each member. What is out of the ordinary is left to
# the writing of single files, which knows each failure by name: a delivery ends before it and says how far it came.
# shellcheck disable=SC2154 # what is not assigned here is in files.bash, which comes first.

# __sbx_bulk NONCE TOKEN DIRS MEMBERS DIR... {INDEX MODE NAME}...
# INDEX says in which DIR a member goes, counted from 0; MODE may be empty. A record G says how many members to deliver; then comes
# a line with a number and that many bytes of an archive, in which each stands as DIR/.sbx-write-TOKEN/NAME. The end record says how
# many have landed.
__sbx_bulk() {
    local nonce=$1 stage=.sbx-write-$2 dirs=("${@:5:$3}") count=$4 members line
    local i d used=() made=() staged=() state=() real=() odd=() tail=() landed=0
    shift $((4 + $3))
    members=("$@")
    if ! (PATH=$__sbx_tools && type -P tar >/dev/null); then
        __sbx_say "$nonce" E '+ notool tar'
        return
    fi
    __sbx_mounts
    for ((i = 0; i < count; i++)); do
        __sbx_plain "${members[3 * i]}" "${members[3 * i + 2]}" || count=$i
    done
    ((count)) && __sbx_stage
    if ((count)); then
        __sbx_say "$nonce" G "$count"
        IFS= read -r line
        shopt -s dotglob nullglob
        [[ $line =~ ^[0-9]{1,15}$ ]] && __sbx_unpack "$line" && __sbx_modes && __sbx_land
        shopt -u dotglob nullglob
    fi
    cd /
    ((${#staged[@]})) && __sbx_each rm -rf -- "${staged[@]}"
    ((landed == ${#members[@]} / 3 || ${#made[@]} == 0)) || __sbx_each rmdir -- "${made[@]}"
    __sbx_say "$nonce" E "+ ok $landed"
}

# __sbx_each NAME [OPTION...] -- FILE...: runs a tool over many files, as few times as the length of a command line allows.
# What is in tail comes last each time.
__sbx_each() {
    local tool=() some=() size=0 code=0 all=''
    while [[ $1 != -- ]]; do
        tool+=("$1")
        shift
    done
    shift
    all=$*
    if ((${#all} + 9 * $# < 100000)); then
        __sbx_do "${tool[@]}" -- "$@" "${tail[@]}"
        return
    fi
    all=
    while (($#)); do
        some+=("$1")
        ((size += ${#1} + 9))
        shift
        if ((size > 90000 || $# == 0)); then
            __sbx_do "${tool[@]}" -- "${some[@]}" "${tail[@]}" || code=1
            all+=${all:+${__sbx_err:+$'\n'}}$__sbx_err
            some=() size=0
        fi
    done
    __sbx_err=$all
    return "$code"
}

# __sbx_plain INDEX NAME: whether nothing is out of the ordinary with that member. The state of a directory is + if it is there and 0
# if it has to be made.
__sbx_plain() {
    d=${dirs[$1]}
    if [[ ! ${state[$1]} ]]; then
        __sbx_walk "${d:-/}"
        [[ -d $__sbx_near && -w $__sbx_near && -x $__sbx_near ]] || return 1
        if ((${#__sbx_gone[@]})); then
            state[$1]=0
            # Deepest first, as they are removed.
            made+=("${__sbx_gone[@]}")
        else
            cd -P -- "${d:-/}" || return 1
            state[$1]=+
            real[$1]=${PWD%/}
        fi
        used+=("$1")
    fi
    ((${#2} <= 255)) || return 1
    [[ ${members[3 * i + 1]} ]] && odd[i]=${members[3 * i + 1]}
    [[ ${state[$1]} == + ]] || return 0
    if [[ -L $d/$2 || -f $d/$2 ]]; then
        [[ ! -d $d/$2 && (! -k ${d:-/} || -O ${d:-/} || -O $d/$2) ]] || return 1
        if [[ ! -L $d/$2 ]]; then
            __sbx_mounted "${real[$1]}/$2" && return 1
            odd[i]=${odd[i]:-old}
        fi
        return 0
    fi
    [[ ! -e $d/$2 ]]
}

# Makes the directories, and one beside the targets in each for what arrives. Lowers count to what can be delivered.
__sbx_stage() {
    local at wanted=()
    for at in "${used[@]}"; do [[ ${state[at]} == 0 ]] && wanted+=("${dirs[at]}"); done
    # What comes with a batch is open to whoever may see the directory above it, whatever the image thinks of new ones.
    umask 022
    ((${#wanted[@]})) && __sbx_each mkdir -p -- "${wanted[@]}"
    umask "$__sbx_umask"
    for at in "${used[@]}"; do staged+=("${dirs[at]}/$stage"); done
    __sbx_each mkdir -m 700 -- "${staged[@]}" && return
    for ((i = 0; i < count; i++)); do
        [[ -d ${dirs[members[3 * i]]}/$stage ]] || count=$i
    done
}

# __sbx_unpack SIZE: takes the archive. Whatever becomes of it, SIZE bytes are consumed.
__sbx_unpack() {
    __sbx_err=$(
        { __sbx_tool dd bs=64K iflag=fullblock,count_bytes "count=$1" 2>/dev/null; } | {
            (__sbx_tool tar -x -p -o -m -f - -C / 2>&1)
            code=$?
            (__sbx_tool cat >/dev/null)
            exit "$code"
        }
    )
}

# Gives each its mode: its own, that of the file it replaces, or 0644. tar alone does not prevail over a default ACL. Fails unless
# all are there.
__sbx_modes() {
    local at names=() n=0 bits IFS
    local -A by=()
    for at in "${used[@]}"; do names+=("${dirs[at]}/$stage"/*); done
    ((${#names[@]} == count)) && __sbx_each chmod 644 -- "${names[@]}" || return 1
    names=()
    for i in "${!odd[@]}"; do
        ((i < count)) || break
        bits=${odd[i]}
        [[ $bits == old ]] && names+=("${dirs[members[3 * i]]}/${members[3 * i + 2]}") || by[$bits]+=" $i"
    done
    if ((${#names[@]})); then
        __sbx_each stat -c %a -- "${names[@]}"
        names=()
        for i in "${!odd[@]}"; do
            [[ ${odd[i]} == old ]] && ((i < count)) && names+=("$i")
        done
        IFS=$'\n'
        for bits in $__sbx_err; do
            # One line each, or what was asked about has changed: then not one of these is plain.
            [[ $bits =~ ^[0-7]{1,4}$ ]] || return 1
            [[ $bits == 644 ]] || by[$bits]+=" ${names[n]}"
            ((n += 1))
        done
        ((n == ${#names[@]})) || return 1
    fi
    IFS=' '
    for bits in "${!by[@]}"; do
        names=()
        for i in ${by[$bits]}; do names+=("${dirs[members[3 * i]]}/$stage/${members[3 * i + 2]}"); done
        __sbx_each chmod "$bits" -- "${names[@]}" || return 1
    done
}

# Renames, directory by directory; landed is how many members have their name, counted from the first.
__sbx_land() {
    local at names tail=(./)
    for at in "${used[@]}"; do
        cd -P -- "${dirs[at]:-/}" || break
        names=("./$stage"/*)
        ((${#names[@]} == 0)) || __sbx_each mv -f -- "${names[@]}" || break
        ((landed += ${#names[@]}))
    done
    ((landed == count)) && return
    landed=0
    for ((i = 0; i < count; i++)); do
        [[ -e ${dirs[members[3 * i]]}/$stage/${members[3 * i + 2]} ]] && break
        ((landed += 1))
    done
}
