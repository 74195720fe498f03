#!/usr/bin/env bash
# Publishes and launches the Flex Template. The Makefile calls it, with its variables in the environment:
#
#   flex.sh template    builds and pushes the image, publishes the template's spec
#   flex.sh launch      runs the published template
#
# Both first check their variables, as far as that is possible without asking Google. DRY_RUN=1 then prints the commands,
# ready to paste, without running them.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    echo "usage: make template|launch PROJECT=my-project REGION=europe-west4 REPOSITORY=my-repository ..." >&2
    exit 2
}

# Prints a line with an example for each missing variable.
need() {
    while [ $# -gt 0 ]; do
        [ -n "${!1:-}" ] || problem "$1 is required: $2"
        shift 2
    done
}

# Prints a line for each variable that is set, but not of this form: its name, a regular expression, and the form.
form() {
    local LC_ALL=C # [a-z] has no other letters
    while [ $# -gt 0 ]; do
        [[ -z "${!1:-}" || "${!1}" =~ ^($2)$ ]] || problem "$1 is ${!1}; it must be $3"
        shift 3
    done
}

# Prints a line. The target fails before it does anything, but finds all problems first.
problem() {
    echo "make: $1" >&2
    problems=1
}

# Exits after problems.
refuse() {
    [ "$problems" = 0 ] || exit 2
}

# Returns whether a switch is on.
switch() {
    [ "${!1:-}" = 1 ]
}

# Prints the argument quoted for a shell.
quoted() {
    case "$1" in
        '' | *[!A-Za-z0-9_./:=@%+,-]*) printf "'%s'" "${1//\'/\'\\\'\'}" ;;
        *) printf '%s' "$1" ;;
    esac
}

# Runs a command, or prints it on one line in a dry run.
run() {
    if [ "$dry_run" = 0 ]; then
        "$@"
        return
    fi
    local separator=''
    for argument in "$@"; do
        printf '%s' "$separator"
        quoted "$argument"
        separator=' '
    done
    printf '\n'
}

template() {
    form BUILDER 'cloud|docker' "cloud or docker"
    refuse
    if [ "${BUILDER:-cloud}" = docker ]; then
        run docker build --platform=linux/amd64 --file=templates/Dockerfile --tag="$image" .
        run docker push "$image"
    else # without a .gcloudignore, gcloud uploads the files that git does not ignore
        run gcloud builds submit --project="$PROJECT" --region="$REGION" \
            --gcs-source-staging-dir="gs://$bucket/source" --config=templates/cloudbuild.yaml \
            --substitutions=_IMAGE="$image" . ||
            problem "the image was not built; if the build was denied something, docs/launch.md has the roles, or set BUILDER=docker"
        refuse
    fi
    # The spec, not the launch, has the defaults of the workers: Terraform reads some of these settings back wrongly.
    run gcloud dataflow flex-template build "$spec" --project="$PROJECT" --image="$image" \
        --sdk-language=PYTHON --metadata-file=templates/metadata.json --enable-streaming-engine \
        --staging-location="gs://$bucket/staging" --temp-location="gs://$bucket/temp" \
        --worker-machine-type="${MACHINE_TYPE:-n2-standard-2}" --max-workers="${MAX_WORKERS:-5}"
    run mkdir -p build
    run gcloud storage cp "$spec" build/template.json
    run python3 templates/complete_spec.py build/template.json templates/metadata.json
    run gcloud storage cp build/template.json "$spec"
    run echo "published $spec with $image"
}

launch() {
    need PARAMETERS "the pipeline's flags, PARAMETERS='input_subscription=projects/my-project/subscriptions/events dead_letter_topic=projects/my-project/topics/dead-letters bigtable_instance=my-instance bigtable_table=sensors'"
    if switch UPDATE; then need JOB "the name of the running job, JOB=tidetable"; fi
    if switch SNAPSHOT && ! switch UPDATE; then problem "SNAPSHOT is 1 without UPDATE=1; it must be set with an update"; fi
    form JOB '[a-z]([-a-z0-9]{0,61}[a-z0-9])?' "at most 63 lower-case letters, digits and hyphens, first a letter, last no hyphen" \
        SERVICE_ACCOUNT '[^@[:space:]]+@[^@[:space:]]+[.]gserviceaccount[.]com' "an account's address, like tidetable-job@my-project.iam.gserviceaccount.com" \
        LAUNCHER_MACHINE_TYPE "$machine_type" "a machine type, like n2-standard-2" \
        PRIVATE '[01]' "1 or 0" AT_LEAST_ONCE '[01]' "1 or 0" UPDATE '[01]' "1 or 0" SNAPSHOT '[01]' "1 or 0" \
        NUM_WORKERS "$number" "a number from 1 to 9999" MIN_WORKERS "$number" "a number from 1 to 9999" \
        SUBNETWORK '[^[:space:]]+' "like regions/europe-west4/subnetworks/workers" \
        KMS_KEY 'projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+' "a key, like projects/my-project/locations/europe-west4/keyRings/my-ring/cryptoKeys/my-key" \
        LABELS "$(words '[a-z][-_a-z0-9]{0,62}=[-_a-z0-9]{0,63}')" "name=value, separated by spaces, in lower-case letters, digits, hyphens and underscores" \
        SERVICE_OPTIONS "$(words '[a-z][a-z0-9_]*(=[^[:space:]]+)?')" "name or name=value, separated by spaces, like worker_utilization_hint=0.7"
    check_parameters
    refuse
    # The image of the workers is in the spec.
    local options=(
        --project="$PROJECT" --region="$REGION" --template-file-gcs-location="$spec" --parameters="$(joined PARAMETERS)"
        --staging-location="gs://$bucket/staging" --temp-location="gs://$bucket/temp" --enable-streaming-engine
    )
    [ -z "${SERVICE_ACCOUNT:-}" ] || options+=(--service-account-email="$SERVICE_ACCOUNT")
    [ -z "${MACHINE_TYPE:-}" ] || options+=(--worker-machine-type="$MACHINE_TYPE")
    [ -z "${LAUNCHER_MACHINE_TYPE:-}" ] || options+=(--launcher-machine-type="$LAUNCHER_MACHINE_TYPE")
    [ -z "${NUM_WORKERS:-}" ] || options+=(--num-workers="$NUM_WORKERS")
    [ -z "${MAX_WORKERS:-}" ] || options+=(--max-workers="$MAX_WORKERS")
    [ -z "${SUBNETWORK:-}" ] || options+=(--subnetwork="$SUBNETWORK")
    [ -z "${KMS_KEY:-}" ] || options+=(--dataflow-kms-key="$KMS_KEY")
    [ -z "${LABELS:-}" ] || options+=(--additional-user-labels="$(joined LABELS)")
    [ -z "${PIPELINE_OPTIONS:-}" ] || options+=(--additional-pipeline-options="$(joined PIPELINE_OPTIONS)")
    # A launch of a template takes Dataflow's service options as experiments.
    local SERVICE_OPTIONS="${SERVICE_OPTIONS:-} ${MIN_WORKERS:+min_num_workers=$MIN_WORKERS}"
    if switch AT_LEAST_ONCE; then SERVICE_OPTIONS+=' streaming_mode_at_least_once'; fi
    [ -z "${SERVICE_OPTIONS// /}" ] || options+=(--additional-experiments="$(joined SERVICE_OPTIONS)")
    if switch PRIVATE; then
        options+=(--disable-public-ips)
        check_private_access
    fi
    if switch UPDATE; then
        options+=(--update)
        if switch SNAPSHOT; then snapshot; fi
    fi
    run gcloud dataflow flex-template run "${JOB:-tidetable-$(date -u +%Y%m%d-%H%M%S)}" "${options[@]}"
}

# Prints a regular expression of words of the given form, separated by spaces and ends of lines.
words() {
    echo "[[:space:]]*(($1)([[:space:]]+|\$))+"
}

# Prints a line for each problem that the job's own settings find in the parameters and options. It asks no server.
check_parameters() {
    local python=${VENV:-.venv}/bin/python
    if [ ! -x "$python" ]; then
        problem "$python is missing, which checks PARAMETERS; run: make setup"
    elif [ -n "${PARAMETERS:-}" ]; then
        "$python" -m pipeline.job.template_parameters || problems=1
    fi
}

# Prints the words of a variable as a list for gcloud. Its separator is a space, which no word contains.
joined() {
    local words
    read -r -d '' -a words <<<"${!1}" || true # at the end of the input, read returns 1
    echo "^ ^${words[*]}"
}

# Fails if the workers' subnetwork has no Private Google Access. Without it, workers that have no public addresses do not
# reach Google's services, and Dataflow refuses the job. Only warns if the subnetwork can't be read.
check_private_access() {
    local owner=$PROJECT area=$REGION name=${SUBNETWORK:-default} access
    case "$name" in *projects/*) owner=${name##*projects/} owner=${owner%%/*} ;; esac
    case "$name" in *regions/*) area=${name##*regions/} area=${area%%/*} ;; esac
    name=${name##*/}
    local place=("$name" --project="$owner" --region="$area")
    local remedy="gcloud compute networks subnets update ${place[*]} --enable-private-ip-google-access"
    if [ "$dry_run" = 1 ]; then
        echo "make: DRY_RUN: whether subnetwork $name has Private Google Access is not checked; PRIVATE=1 needs it: $remedy" >&2
    elif ! access=$(gcloud compute networks subnets describe "${place[@]}" --format='value(privateIpGoogleAccess)' 2>&1); then
        echo "make: could not check whether subnetwork $name has Private Google Access, which PRIVATE=1 needs: ${access##*$'\n'}" >&2
        echo "make: if Dataflow refuses the job: $remedy" >&2
    elif [ "$access" != True ]; then
        echo "make: subnetwork $name has no Private Google Access, which PRIVATE=1 needs; enable it: $remedy" >&2
        exit 1
    fi
}

# Takes a snapshot of the running job, with the position of its subscription, and waits until it is complete.
snapshot() {
    local place=(--project="$PROJECT" --region="$REGION") job id state
    local list=(gcloud dataflow jobs list "${place[@]}" --status=active --filter="name=$JOB" --format='value(id)')
    local create=(gcloud dataflow snapshots create "${place[@]}" --snapshot-sources=true --format='value(id)')
    if [ "$dry_run" = 1 ]; then
        echo "$(run "${create[@]}") --job-id=\"\$($(run "${list[@]}"))\""
        return
    fi
    job=$("${list[@]}")
    [ -n "$job" ] || { echo "make: no job named $JOB is running in $REGION; see: gcloud dataflow jobs list" >&2 && exit 1; }
    id=$("${create[@]}" --job-id="$job")
    echo "snapshot $id of job $job, kept for 7 days"
    while state=$(gcloud dataflow snapshots describe "$id" "${place[@]}" --format='value(state)'); do
        case "$state" in
            READY) return ;;
            FAILED | DELETED) echo "make: snapshot $id is $state; the job was not updated" >&2 && exit 1 ;;
        esac
        sleep 5
    done
    exit 1
}

case "${1:-}" in template | launch) ;; *) usage ;; esac
dry_run=0 problems=0
if switch DRY_RUN; then dry_run=1; fi

# Workers pull the image by this name while the job runs, so each version of the code has its own tag.
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
commit=$(git describe --always --dirty --exclude='*' 2>/dev/null || true)
tag=${TAG:-$version${commit:+-$commit}}
bucket=${BUCKET:-${PROJECT:-}-tidetable-staging} # the name that templates/terraform uses
image=${REGION:-}-docker.pkg.dev/${PROJECT:-}/${REPOSITORY:-}/tidetable:$tag
spec=gs://$bucket/templates/tidetable-$tag.json

machine_type='[a-z][a-z0-9]*-[-a-z0-9]+' number='[1-9][0-9]{0,3}'
# A misspelled variable would be ignored. GIVEN has the names of all that make was given.
for name in ${GIVEN:-}; do
    sed -n '/^VENV/p; /^PYTHON/p; /^# The Flex Template/,/^template launch:/p' Makefile | grep -w "$name" >/dev/null ||
        problem "there is no variable $name; the Makefile lists all"
done
need PROJECT "the project of the job, PROJECT=my-project" \
    REGION "the region of the job and its image, REGION=europe-west4" \
    REPOSITORY "an Artifact Registry repository for images, in that region, REPOSITORY=my-repository"
form PROJECT '[a-z][-a-z0-9:.]{4,61}[a-z0-9]' "a project id, like my-project" \
    REGION '[a-z]+(-[a-z]+)+[0-9]+' "a region, like europe-west4, not a zone" \
    REPOSITORY '[a-z]([-a-z0-9]{0,61}[a-z0-9])?' "the name of a repository, like my-repository" \
    BUCKET '[a-z0-9][-._a-z0-9]{1,220}[a-z0-9]' "the name of a bucket, like my-bucket, without gs://" \
    TAG '[A-Za-z0-9_][-._A-Za-z0-9]{0,127}' "the tag of an image, like 1.2" \
    MACHINE_TYPE "$machine_type" "a machine type, like n2-standard-2" \
    MAX_WORKERS "$number" "a number from 1 to 9999" \
    DRY_RUN '[01]' "1 or 0"
"$1"
